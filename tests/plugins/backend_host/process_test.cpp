// The backend with ranks that are processes (rank_process.cpp): over shared memory and over Gloo.
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "plugins/backend_host/backend_host.pb.h"
#include "runtime/base/error.h"

extern char** environ;

namespace ananke::testing {
namespace {

using Config = plugin::BackendHost;

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "ananke_ranks_XXXXXX").string();
    if (!mkdtemp(name.data())) fail(ErrorKind::resource, "no folder {}", name);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Exit codes, or minus the signal, by rank.
std::vector<int> run_processes(const Folder& folder, int size, Config::Transport transport, const char* scenario) {
  std::vector<pid_t> processes;
  for (int rank = 0; rank < size; ++rank) {
    std::vector<std::string> arguments{RANK_PROCESS,         folder.path().string(),    std::to_string(rank),
                                       std::to_string(size), std::to_string(transport), scenario};
    std::vector<char*> pointers;
    for (auto& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    pid_t process = 0;
    if (posix_spawn(&process, RANK_PROCESS, nullptr, nullptr, pointers.data(), environ) != 0) {
      fail(ErrorKind::resource, "cannot start {}", RANK_PROCESS);
    }
    processes.push_back(process);
  }
  std::vector<int> codes;
  for (pid_t process : processes) {
    int status = 0;
    waitpid(process, &status, 0);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
  }
  return codes;
}

std::string error_of(const Folder& folder, int rank) {
  std::ifstream in(folder.path() / ("error." + std::to_string(rank)));
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

class Processes : public ::testing::TestWithParam<Config::Transport> {};

TEST_P(Processes, ComputeTheSameAsOneProcess) {
  Folder folder;
  const auto codes = run_processes(folder, 3, GetParam(), "sum");
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(codes[static_cast<std::size_t>(rank)], 0) << error_of(folder, rank);
}

TEST_P(Processes, EndWhenOneIsKilled) {
  Folder folder;
  const auto codes = run_processes(folder, 4, GetParam(), "kill");  // a deadline that passed would be another code
  EXPECT_EQ(codes[3], -SIGKILL);
  bool named = false;
  for (int rank = 0; rank < 3; ++rank) {
    const auto error = error_of(folder, rank);
    EXPECT_EQ(codes[static_cast<std::size_t>(rank)], static_cast<int>(ErrorKind::worker_failed)) << error;
    EXPECT_NE(error.find("communicator world of ranks 0-3, all_reduce on rank"), std::string::npos) << error;
    named = named || error.find("rank 3") != std::string::npos;
  }
  EXPECT_TRUE(named) << error_of(folder, 0);
}

INSTANTIATE_TEST_SUITE_P(, Processes, ::testing::Values(Config::AUTO, Config::SHARED_MEMORY, Config::GLOO),
                         [](const auto& info) { return Config::Transport_Name(info.param); });

TEST(ProcessMisuse, ThreadsAreRefusedBetweenProcesses) {
  Folder folder;
  const auto codes = run_processes(folder, 2, Config::THREADS, "sum");
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(codes[static_cast<std::size_t>(rank)], static_cast<int>(ErrorKind::config));
    EXPECT_NE(error_of(folder, rank).find("use AUTO, SHARED_MEMORY or GLOO"), std::string::npos);
  }
}

}  // namespace
}  // namespace ananke::testing
