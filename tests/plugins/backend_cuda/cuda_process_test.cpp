// Communicators of ranks that are processes with a GPU each (cuda_rank_process.cpp, beside this program).
#include <spawn.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/plugins/backend_cuda/gpu.h"

extern char** environ;

namespace ananke::testing {
namespace {

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
std::vector<int> run_processes(const Folder& folder, int size, const char* scenario) {
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

// As many ranks as there are GPUs, four at most.
int ranks() { return std::min(gpus(), 4); }

TEST(CudaProcesses, ComputeTheSameAsOneProcess) {
  ANANKE_NEEDS_GPUS(2);
  const Folder folder;
  const auto codes = run_processes(folder, ranks(), "sum");
  for (int rank = 0; rank < ranks(); ++rank) {
    EXPECT_EQ(codes[static_cast<std::size_t>(rank)], 0) << folder.error_of(rank);
  }
}

TEST(CudaProcesses, EndWhenOneIsKilled) {
  ANANKE_NEEDS_GPUS(2);
  const Folder folder;
  const auto start = std::chrono::steady_clock::now();
  const auto codes = run_processes(folder, ranks(), "kill");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));  // opening the devices included
  EXPECT_EQ(codes.back(), -SIGKILL);
  bool named = false;
  for (int rank = 0; rank + 1 < ranks(); ++rank) {
    const std::string error = folder.error_of(rank);
    EXPECT_EQ(codes[static_cast<std::size_t>(rank)], static_cast<int>(ErrorKind::worker_failed)) << error;
    EXPECT_NE(error.find("communicator world of ranks"), std::string::npos) << error;
    named = named || error.find(fmt::format("rank {} (", ranks() - 1)) != std::string::npos;
  }
  EXPECT_TRUE(named) << folder.error_of(0);
}

}  // namespace
}  // namespace ananke::testing
