// Ranks that are processes with a GPU each or one for all (cuda_rank_process.cpp, beside the test program).
#pragma once

#include <spawn.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/plugins/backend_cuda/gpu.h"

extern char** environ;

namespace ananke::testing {

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "ananke_cuda_ranks_XXXXXX").string();
    if (!mkdtemp(name.data())) fail(ErrorKind::resource, "no folder {}", name);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }
  std::string error_of(int rank) const {
    std::ifstream in(path_ / ("error." + std::to_string(rank)));
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

 private:
  std::filesystem::path path_;
};

// Exit codes, or minus the signal, by rank.
inline std::vector<int> run_processes(const Folder& folder, int size, const char* scenario) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "cuda_rank_process";
  std::vector<pid_t> processes;
  for (int rank = 0; rank < size; ++rank) {
    std::vector<std::string> arguments{program, folder.path().string(), std::to_string(rank), std::to_string(size),
                                       scenario};
    std::vector<char*> pointers;
    for (auto& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    pid_t process = 0;
    if (posix_spawn(&process, program.c_str(), nullptr, nullptr, pointers.data(), environ) != 0) {
      fail(ErrorKind::resource, "cannot start {}", program);
    }
    processes.push_back(process);
  }
  std::vector<int> codes;
  for (const pid_t process : processes) {
    int status = 0;
    waitpid(process, &status, 0);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
  }
  return codes;
}

}  // namespace ananke::testing
