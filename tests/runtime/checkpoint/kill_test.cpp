// Real kills: a child process saves in a loop and is killed at some moment; whatever it left must load.
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
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

// Without taking its status.
bool has_not_ended(pid_t child) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
}

bool has_newer(const std::filesystem::path& checkpoints, std::uint64_t step) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(checkpoints, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (!is_leftover(name) && name > step_folder_name(step)) return true;
  }
  return false;
}

TEST_F(CheckpointTest, AfterAKillAtAnyMomentTheNewestCompleteOneLoads) {
  const RandomKey random(1, "moments");
  ASSERT_EQ(save(1, 2, 2), all_of(2, ""));
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(save(2, 2, 2), all_of(2, ""));
  const std::chrono::duration<double, std::micro> one_save = std::chrono::steady_clock::now() - begin;
  std::uint64_t before = 2;
  for (std::uint64_t round = 0; round < 100; ++round) {
    const pid_t child = fork_child([&] {
      for (std::uint64_t step = before + 1;; ++step) {
        const auto errors = save(step, 2, 2);
        if (errors != all_of(2, "")) return 1;
      }
      return 0;
    });
    ASSERT_GT(child, 0);
    // Every other kill comes some time after a first save, the others within the first or before it.
    while (round % 2 == 0 && !has_newer(checkpoints_folder(run_dir), before) && has_not_ended(child)) {
      ::usleep(500);
    }
    ::usleep(static_cast<useconds_t>(2 * one_save.count() * random.uniform(round)));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child failed by itself, status " << status;
    const auto found = find_checkpoints(run_dir);
    for (const auto& one : found) EXPECT_TRUE(one.complete()) << one.folder << ": " << one.problem;
    const std::uint64_t newest = found.empty() ? 0 : found.front().step;
    EXPECT_GE(newest, before) << "a checkpoint was lost";
    EXPECT_EQ(load(2), all_of(2, fmt::format("step {}", newest)));
    before = newest;
  }
  EXPECT_GE(before, 2u + 50u);
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

// A file system of 3 MB for this process alone; false where that is not allowed.
bool mount_small_disk(const std::filesystem::path& folder) {
  return ::unshare(geteuid() == 0 ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS) == 0 &&
         ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=3m") == 0;
}

// Open descriptors of files that are gone, whose space is not free yet.
int open_but_removed(const std::filesystem::path& folder) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    count += std::filesystem::read_symlink(entry, gone).string().starts_with(folder.string());
  }
  return count;
}

TEST_F(CheckpointTest, ADiskThatFillsUpTakesBackItsSpaceAndTheRunCanGoOn) {
  constexpr int not_allowed = 77;
  std::filesystem::create_directories(run_dir);
  const pid_t child = fork_child([&] {
    if (!mount_small_disk(run_dir)) return not_allowed;
    std::uint64_t step = 0;
    // Elements of each of 4 ranks: fits, fills up while data are written, fits, hardly the first bytes fit, fits.
    for (const int count : {1000, 250'000, 150'000, 180'000, 1000}) {
      ++step;
      const bool fits = count < 160'000;
      const auto errors = as_ranks(4, [&](int rank, Rendezvous& rendezvous) {
        const std::vector<float> data(static_cast<std::size_t>(count), 1.0f);
        const StateFragment mine{"w", "weight", {4 * count}, rank * count, count, data.data()};
        Checkpoints(run_dir, rendezvous).save({step, 0, 0, ""}, test_job(), std::span(&mine, 1), 1);
      });
      for (const auto& error : errors) {
        if (error != errors[0] || error.empty() != fits ||
            (!fits && error.find("free space or inodes") == error.npos)) {
          fmt::print(stderr, "step {}: '{}'\n", step, error);
          return 1;
        }
      }
      if (open_but_removed(run_dir) != 0) return 2;
    }
    const auto found = find_checkpoints(run_dir);
    return found.size() == 1 && found[0].complete() && found[0].step == 5 ? 0 : 3;
  });
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == not_allowed) GTEST_SKIP() << "no mounts here";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace ananke
