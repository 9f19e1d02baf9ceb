// An `ananke` command as a process of its own, its output, and its workers by rank.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace ananke {

inline std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class CommandProcess {
 public:
  // Both streams go to `output`. `environment`: "NAME=value" each, on top of this process's own.
  CommandProcess(const std::vector<std::string>& words, std::filesystem::path output,
                 std::vector<std::string> environment = {})
      : output_(std::move(output)) {
    std::vector<std::string> all{ANANKE_BINARY_DIR "/bin/ananke"};
    all.insert(all.end(), words.begin(), words.end());
    std::vector<char*> arguments;
    for (std::string& word : all) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const int file = open(output_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    pid_ = fork();
    if (pid_ != 0) {
      close(file);
      return;
    }
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    for (std::string& setting : environment) putenv(setting.data());
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  ~CommandProcess() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  CommandProcess(const CommandProcess&) = delete;
  CommandProcess& operator=(const CommandProcess&) = delete;

  pid_t pid() const { return pid_; }
  std::string output() const { return text_of(output_); }
  bool running() {
    if (pid_ > 0 && waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = -1;
    return pid_ > 0;
  }
  // Exit code, 1000 + signal, or -1 when it still runs after `limit`.
  int wait(std::chrono::milliseconds limit = std::chrono::minutes(5)) {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (running()) {
      if (std::chrono::steady_clock::now() > until) return -1;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : 1000 + WTERMSIG(status_);
  }
  // Its workers' processes by rank, as far as they have been started.
  std::map<int, pid_t> workers() const {
    std::map<int, pid_t> found;
    std::error_code gone;
    for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid_) + "/task", gone)) {
      std::ifstream children(task.path() / "children");
      for (pid_t child = 0; children >> child;) {
        const std::string environment = '\0' + text_of("/proc/" + std::to_string(child) + "/environ");
        const auto at = environment.find(std::string("\0PMIX_RANK=", 11));
        if (at != std::string::npos) found[std::stoi(environment.substr(at + 11))] = child;
      }
    }
    return found;
  }

 private:
  std::filesystem::path output_;
  pid_t pid_ = -1;
  int status_ = 0;
};

// A zombie that another process has not fetched yet is dead.
inline bool is_alive(pid_t pid) {
  const std::string text = text_of("/proc/" + std::to_string(pid) + "/stat");
  const auto at = text.rfind(") ");
  return at != std::string::npos && text[at + 2] != 'Z' && text[at + 2] != 'X';
}

}  // namespace ananke
