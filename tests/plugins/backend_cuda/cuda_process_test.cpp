// Communicators of ranks that are processes with a GPU each (cuda_rank_process.cpp, beside this program).
#include "tests/plugins/backend_cuda/rank_processes.h"

namespace ananke::testing {
namespace {

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

void expect_end_when_one_is_killed(const char* scenario) {
  const Folder folder;
  const auto start = std::chrono::steady_clock::now();
  const auto codes = run_processes(folder, ranks(), scenario);
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

TEST(CudaProcesses, EndWhenOneIsKilled) {
  ANANKE_NEEDS_GPUS(2);
  expect_end_when_one_is_killed("kill");
}

TEST(CudaProcesses, EndWhenOneIsKilledAndTheOthersWaitInsideAKernel) {
  ANANKE_NEEDS_GPUS(2);
  expect_end_when_one_is_killed("kill_rows");
}

}  // namespace
}  // namespace ananke::testing
