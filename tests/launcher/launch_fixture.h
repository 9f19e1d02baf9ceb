// Starts probe workers, and says whether any of their processes is left.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "launcher/launch.h"
#include "tests/patience.h"

namespace ananke {

class LaunchTest : public ::testing::Test {
 protected:
  LaunchTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ananke-launch-test.XXXXXX").string();
    folder = mkdtemp(pattern.data());
  }
  ~LaunchTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }

  LaunchSpec spec(int ranks, const std::string& action, int rank = -1) {
    LaunchSpec made;
    made.program = probe;
    made.arguments = {probe, action, std::to_string(rank)};
    made.ranks = ranks;
    made.run_dir = folder;
    made.grace = std::chrono::milliseconds(500);
    made.console = [this](const std::string& line) { console.push_back(line); };
    return made;
  }
  // In a child process: libpmix serves once per process.
  LaunchResult launch(const LaunchSpec& made) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) launch_and_tell(made, ends[1]);
    close(ends[1]);
    std::string told;
    char bytes[4096];
    for (ssize_t got; (got = read(ends[0], bytes, sizeof bytes)) > 0;)
      told.append(bytes, static_cast<std::size_t>(got));
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the launcher itself ended with status " << status;
    LaunchResult result = read_result(told);
    EXPECT_TRUE(nobody_left(made.ranks)) << result.report;
    return result;
  }
  std::string log_of(int rank) const {
    std::ifstream file(folder / "logs" / ("rank-" + std::to_string(rank) + ".log"));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Every worker's first line names its process; one that is a zombie of another parent is gone too.
  bool nobody_left(int ranks) const {
    return eventually([&] {
      bool left = false;
      for (int rank = 0; rank < ranks; ++rank) left = left || is_alive(pid_of(rank));
      return !left;
    });
  }
  int pid_of(int rank) const {
    const std::string log = log_of(rank);
    const auto at = log.rfind("pid ");
    return at == std::string::npos ? -1 : std::stoi(log.substr(at + 4));
  }
  static bool is_alive(int pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto at = text.rfind(") ");
    return pid > 0 && at != std::string::npos && text[at + 2] != 'Z' && text[at + 2] != 'X';
  }

  [[noreturn]] void launch_and_tell(const LaunchSpec& made, int pipe_end) {
    LaunchResult result;
    try {
      result = launch_local(made);
    } catch (const Error& error) {
      result.exit_code = static_cast<int>(error.kind());
      result.report = std::string("error: ") + error.what();
    }
    const Cause cause = result.cause.value_or(Cause{.rank = -1});
    std::string text = fmt::format("{} {} {} {} {} {}\n", result.exit_code, result.stopped ? 1 : 0, cause.rank,
                                   static_cast<int>(cause.what), cause.number, console.size());
    for (const std::string& line : console) text += line + "\n";
    text += result.report;
    for (std::size_t sent = 0; sent < text.size();) {
      sent += static_cast<std::size_t>(std::max<ssize_t>(0, write(pipe_end, text.data() + sent, text.size() - sent)));
    }
    _exit(0);
  }
  LaunchResult read_result(const std::string& told) {
    std::istringstream stream(told);
    LaunchResult result;
    Cause cause;
    int what = 0;
    std::size_t lines = 0;
    stream >> result.exit_code >> result.stopped >> cause.rank >> what >> cause.number >> lines;
    stream.ignore();
    console.clear();
    for (std::string line; lines > 0 && std::getline(stream, line); --lines) console.push_back(line);
    result.report.assign(std::istreambuf_iterator<char>(stream), {});
    cause.what = static_cast<Cause::What>(what);
    if (cause.rank >= 0) result.cause = cause;
    return result;
  }

  static constexpr const char* probe = ANANKE_BINARY_DIR "/tests/probe_worker";
  static constexpr const char* probe_launcher = ANANKE_BINARY_DIR "/tests/probe_launcher";
  std::filesystem::path folder;
  std::vector<std::string> console;
};

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace ananke
