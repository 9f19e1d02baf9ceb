// Real kills: a child process saves in a loop and is killed at some moment; whatever it left must load.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "runtime/base/random.h"
#include "tests/runtime/checkpoint/checkpoint_fixture.h"

namespace ananke {
namespace {

// Forks; the child runs `body` and leaves with its return value, without touching what the test framework holds.
template <class Body>
pid_t fork_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  return child;
}

TEST_F(CheckpointTest, AfterAKillAtAnyMomentTheNewestCompleteOneLoads) {
  const RandomKey random(1, "moments");
  std::uint64_t before = 0;
  for (std::uint64_t round = 0; round < 24; ++round) {
    const pid_t child = fork_child([&] {
      for (std::uint64_t step = before + 1;; ++step) {
        const auto errors = save(step, 2, 2);
        if (errors != all_of(2, "")) return 1;
      }
      return 0;
    });
    ASSERT_GT(child, 0);
    ::usleep(static_cast<useconds_t>(1000 + random.below(round, 120000)));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child failed by itself, status " << status;
    const auto found = find_checkpoints(run_dir);
    for (const auto& one : found) EXPECT_TRUE(one.complete()) << one.folder << ": " << one.problem;
    const std::uint64_t newest = found.empty() ? 0 : found.front().step;
    EXPECT_GE(newest, before) << "a checkpoint was lost";
    EXPECT_EQ(load(2), all_of(2, newest == 0 ? "nothing" : fmt::format("step {}", newest)));
    before = newest;
  }
  EXPECT_GT(before, 5u) << "the child hardly saved: the test shows nothing";
  ASSERT_EQ(save(before + 1, 2, 2), all_of(2, ""));
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints_folder(run_dir))) {
    EXPECT_FALSE(is_leftover(entry.path().filename().string())) << entry.path();
  }
}

// A file-size limit stands for a full disk: writes fail half way.
TEST_F(CheckpointTest, AFullDiskFailsOnEveryRankAndTheOlderOneStays) {
  ASSERT_EQ(save(1, 2), all_of(2, ""));
  const pid_t child = fork_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{32768, 32768};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::vector<float> large(100000, 1.0f);
    const auto errors = as_ranks(3, [&](int rank, Rendezvous& rendezvous) {
      const std::int64_t count = rank == 1 ? 100000 : 10;
      const StateFragment mine{fmt::format("w{}", rank), "weight", {count}, 0, count, large.data()};
      Checkpoints checkpoints(run_dir, rendezvous);
      checkpoints.save({2, 0, 0, ""}, test_job(), std::span(&mine, 1), 1);
    });
    const std::string expected =
        "checkpoint: the checkpoint of step 2 was not written; earlier ones are untouched. rank 1: cannot write";
    for (const auto& error : errors) {
      if (error != errors[0] || error.find(expected) != 0 || error.find("File too large") == std::string::npos ||
          error.find("rank-0001.h5") == std::string::npos) {
        fmt::print(stderr, "unexpected: {}\n", error);
        return 1;
      }
    }
    return save(3, 2) == all_of(2, "") ? 0 : 2;  // the library still works after its failure
  });
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_TRUE(find_checkpoints(run_dir).back().complete());
  EXPECT_EQ(load(2), all_of(2, "step 3"));
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints_folder(run_dir))) {
    EXPECT_FALSE(is_leftover(entry.path().filename().string())) << entry.path();
  }
}

}  // namespace
}  // namespace ananke
