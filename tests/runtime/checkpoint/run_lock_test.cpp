#include "runtime/checkpoint/run_lock.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <memory>
#include <optional>

#include "tests/patience.h"
#include "tests/refusal.h"
#include "tests/runtime/checkpoint/checkpoint_fixture.h"

namespace ananke {
namespace {

using std::chrono::milliseconds;

constexpr RunLockTimes quick{milliseconds(20), milliseconds(400)};
// For holders that live: a loaded machine may keep one from its beat for a while.
constexpr RunLockTimes patient{milliseconds(20), milliseconds(10'000)};

ProcessIdentity elsewhere() {
  ProcessIdentity identity = this_process();
  identity.host = "elsewhere";
  identity.boot = "boot of elsewhere";
  return identity;
}

class RunLockTest : public CheckpointTest {
 protected:
  void SetUp() override {
    CheckpointTest::SetUp();
    std::filesystem::create_directories(run_dir);
    file = run_dir / "launcher.lock";
  }
  // What a second one is refused with; empty where it gets the folder.
  std::string second(RunLockTimes times = quick) {
    said.clear();
    try {
      const RunLock lock(
          run_dir, [this](const std::string& line) { said += line + "\n"; }, times);
      check_run_owner(run_dir, lock.token());
    } catch (const Error& error) {
      return fmt::format("{}: {}", name_of(error.kind()), error.what());
    }
    return "";
  }
  std::string text() const {
    std::ifstream stream(file);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  // A file of a holder that is gone without having let go.
  void leave(const std::function<std::unique_ptr<RunLock>()>& make) {
    const pid_t child = fork();
    if (child == 0) {
      make().release();
      _exit(0);
    }
    waitpid(child, nullptr, 0);
    ASSERT_TRUE(std::filesystem::exists(file));
  }

  std::filesystem::path file;
  std::string said;
};

TEST_F(RunLockTest, ASecondOneOfThisMachineIsRefusedAtOnceAndToldWhoAndSinceWhen) {
  std::optional<RunLock> first(std::in_place, run_dir);
  for (int i = 0; i < 2; ++i) {
    const std::string refusal = second({});
    EXPECT_NAMES(refusal, fmt::format("config: the run folder {} is in use: process {} on {} holds it since 20",
                                      run_dir.string(), getpid(), host_name()));
    EXPECT_NAMES(refusal, "(its process is running)");
    EXPECT_NAMES(refusal, "choose another run_dir");
    EXPECT_EQ(said, "") << "it was not watched";
  }
  EXPECT_EQ(first->lost(), "");
  first.reset();
  EXPECT_TRUE(std::filesystem::is_empty(run_dir));
  EXPECT_EQ(second(), "");
  EXPECT_EQ(said, "");
}

TEST_F(RunLockTest, AFolderThatCannotBeWrittenIsSaid) {
  run_dir /= "missing";
  EXPECT_NAMES(second(), "resource: cannot write");
  run_dir = run_dir.parent_path();
}

TEST_F(RunLockTest, TheLockOfAKilledProcessIsTakenAtOnce) {
  leave([&] { return std::make_unique<RunLock>(run_dir); });
  std::ofstream(file.string() + ".0123456789ab") << "what another was about to link";
  EXPECT_EQ(second({}), "");
  EXPECT_NAMES(said, "which is gone: taken over");
  EXPECT_TRUE(std::filesystem::is_empty(run_dir)) << "nothing else stays either";
}

TEST_F(RunLockTest, AStoppedProcessOfThisMachineKeepsItsFolder) {
  const pid_t child = fork();
  if (child == 0) {
    const RunLock lock(run_dir, {}, quick);
    raise(SIGSTOP);
    _exit(0);
  }
  waitpid(child, nullptr, WUNTRACED);
  std::this_thread::sleep_for(2 * quick.patience);
  EXPECT_NAMES(second(), "its process is stopped (SIGSTOP; it can be continued with SIGCONT)");
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(second(), "");
}

TEST_F(RunLockTest, AHolderElsewhereLivesAsLongAsItGivesSigns) {
  const RunLock first(run_dir, {}, quick, elsewhere());
  std::this_thread::sleep_for(2 * quick.patience);
  EXPECT_NAMES(second(patient), fmt::format("process {} on elsewhere holds it since", getpid()));
  EXPECT_NAMES(second(patient), "(it has just given a sign of life)");
  EXPECT_NAMES(said, "waiting up to 10.0 s for a sign of life");
  EXPECT_EQ(first.lost(), "");
  check_run_owner(run_dir, first.token());
}

TEST_F(RunLockTest, AHolderElsewhereThatIsSilentLosesTheFolder) {
  leave([&] { return std::make_unique<RunLock>(run_dir, nullptr, quick, elsewhere()); });
  EXPECT_EQ(second(), "");
  EXPECT_NAMES(said, "which is silent: taken over");
}

TEST_F(RunLockTest, AFileThatSaysNothingBlocksNobodyForEver) {
  for (const char* content : {"", "an older format\n", "token \nprocess x\nboot\n\n"}) {
    std::ofstream(file) << content;
    EXPECT_EQ(second(), "") << content;
    EXPECT_NAMES(said, "held by somebody who left no name");
  }
}

TEST_F(RunLockTest, ATimeStampAloneIsASignOfLife) {
  std::ofstream(file) << "a holder that cannot write into its full disk\n";
  std::jthread other([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::filesystem::last_write_time(file, std::filesystem::file_time_type::clock::now());
      std::this_thread::sleep_for(milliseconds(10));
    }
  });
  EXPECT_NAMES(second(patient), "(it has just given a sign of life)");
}

TEST_F(RunLockTest, ARemovedLockIsPutBackByItsHolder) {
  const RunLock first(run_dir, {}, quick);
  std::filesystem::remove(file);
  check_run_owner(run_dir, first.token());
  EXPECT_EQ(first.lost(), "");
  EXPECT_NE(second(), "");
}

TEST_F(RunLockTest, WithoutAnyLockNothingIsConfirmed) {
  const std::string message =
      refusal(ErrorKind::checkpoint, [&] { check_run_owner(run_dir, "0123456789abcdef", milliseconds(100)); });
  EXPECT_NAMES(message, file.string() + " is gone, and for 100 ms nobody has put it back");
}

TEST_F(RunLockTest, ALaterHolderEndsTheEarlierOnesHold) {
  std::optional<RunLock> first(std::in_place, run_dir, nullptr, quick, elsewhere());
  std::filesystem::remove(file);  // as if the first had been silent
  std::optional<RunLock> other(std::in_place, run_dir, nullptr, quick);
  const std::string message = refusal(ErrorKind::checkpoint, [&] { check_run_owner(run_dir, first->token()); });
  EXPECT_NAMES(message, fmt::format("is held by process {} on {} since", getpid(), host_name()));
  EXPECT_TRUE(eventually([&] { return !first->lost().empty(); }));
  EXPECT_NAMES(first->lost(), "was taken over by process");
  first.reset();
  check_run_owner(run_dir, other->token());  // the first has not removed what is not its own
}

TEST_F(RunLockTest, OfManyThatFindADeadHolderOneGetsTheFolder) {
  constexpr int contenders = 6;
  for (int round = 0; round < 8; ++round) {
    leave([&] { return std::make_unique<RunLock>(run_dir); });
    int ready[2], answered[2], over[2];
    for (int* ends : {ready, answered, over}) ASSERT_EQ(pipe(ends), 0);
    std::vector<pid_t> children;
    for (int i = 0; i < contenders; ++i) {
      children.push_back(fork());
      if (children.back() != 0) continue;
      char byte = 0;
      bool told = false;
      const auto tell = [&] { told = told || write(answered[1], &byte, 1) == 1; };
      close(ready[1]);
      close(over[1]);
      if (read(ready[0], &byte, 1) != 0) _exit(3);  // all begin when the parent closes its end
      try {
        const RunLock lock(run_dir);
        check_run_owner(run_dir, lock.token());
        tell();
        if (read(over[0], &byte, 1) != 0) _exit(3);  // held until all have their answer
        check_run_owner(run_dir, lock.token());
        _exit(lock.lost().empty() ? 0 : 4);
      } catch (const Error& error) {
        tell();
        // Refused at once, or told soon after that another one has it: who comes late may take away for a moment what
        // an earlier one has just put there.
        _exit(error.kind() == ErrorKind::config || error.kind() == ErrorKind::checkpoint ? 1 : 5);
      }
    }
    for (int end : {ready[0], ready[1], answered[1]}) close(end);
    char byte = 0;
    for (int i = 0; i < contenders; ++i) EXPECT_EQ(read(answered[0], &byte, 1), 1);
    for (int end : {answered[0], over[0], over[1]}) close(end);
    int holders = 0, refused = 0;
    for (const pid_t child : children) {
      int status = 0;
      waitpid(child, &status, 0);
      ASSERT_TRUE(WIFEXITED(status));
      holders += WEXITSTATUS(status) == 0;
      refused += WEXITSTATUS(status) == 1;
    }
    EXPECT_EQ(holders + refused, contenders) << "round " << round;
    EXPECT_EQ(holders, 1) << "round " << round;
    std::filesystem::remove(file);
  }
}

// A holder that is stopped at the worst moment: all is written and it has been told that the folder is its own; the
// rename comes next.
TEST_F(RunLockTest, AHolderThatWakesUpAfterItsLossCommitsNothing) {
  const auto save_as = [&](const RunLock& lock, std::uint64_t step, const std::function<void()>& then) {
    return as_ranks(2, [&](int rank, Rendezvous& rendezvous) {
      RankState state(test_tensors(), rank, 2);
      state.fill(step);
      int asked = 0;
      const CheckpointOwner owner{owner_mark(lock.token()), [&] {
                                    check_run_owner(run_dir, lock.token());
                                    if (++asked == 2 && then) then();
                                  }};
      Checkpoints(run_dir, rendezvous, "checkpoint", owner)
          .save({step, step * 10, step - 1, fmt::format("row {}", step)}, test_job(), state.fragments(), 0);
    });
  };
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const pid_t child = fork();
  if (child == 0) {
    std::string text;
    {
      const RunLock lock(run_dir, {}, quick, elsewhere());
      if (save_as(lock, 1, {}) != all_of(2, "")) text = "the first was not written\n";
      for (const auto& error : save_as(lock, 2, [] { raise(SIGSTOP); })) text += error + "\n";
      for (const auto& error : save_as(lock, 3, {})) text += error + "\n";
      eventually([&] { return !lock.lost().empty(); });
      text += lock.lost();
    }  // its thread is joined; the folder is left to who took it over
    _exit(write(told[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(told[1]);
  int status = 0;
  waitpid(child, &status, WUNTRACED);
  ASSERT_TRUE(WIFSTOPPED(status));
  const RunLock lock(run_dir, {}, quick);
  EXPECT_EQ(find_checkpoints(run_dir).size(), 1u);
  kill(child, SIGCONT);
  std::string text;
  char bytes[4096];
  for (ssize_t got; (got = read(told[0], bytes, sizeof bytes)) > 0;) text.append(bytes, static_cast<std::size_t>(got));
  close(told[0]);
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_NAMES(text,
               "checkpoint: the checkpoint of step 2 was not written; earlier ones are untouched. rank 0: cannot");
  EXPECT_NAMES(text, "No such file or directory");
  EXPECT_NAMES(text, "checkpoint: the checkpoint of step 3 was not written: the run folder");
  EXPECT_NAMES(text, fmt::format("is held by process {} on {} since", getpid(), host_name()));
  EXPECT_NAMES(text, "was taken over by process");
  EXPECT_EQ(save_as(lock, 2, {}), all_of(2, ""));
  EXPECT_EQ(load(2), all_of(2, "step 2"));
  const auto found = find_checkpoints(run_dir);
  EXPECT_EQ(found.size(), 2u);
  EXPECT_EQ(second({}).find("config: the run folder"), 0u);
}

// Every link is refused, as by a file system that has none.
bool forbid_links() {
#ifdef __NR_link
  constexpr unsigned plain = __NR_link;
#else
  constexpr unsigned plain = __NR_linkat;
#endif
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, plain, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_linkat, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof filter / sizeof *filter, filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST_F(RunLockTest, AFileSystemWithoutLinksWillDo) {
  leave([&] { return std::make_unique<RunLock>(run_dir); });
  const pid_t child = fork();
  if (child == 0) {
    if (!forbid_links()) _exit(77);
    if (::link("/proc/self/exe", (run_dir / "never").c_str()) == 0 || errno != EPERM) _exit(78);
    if (!second().empty()) _exit(1);
    const RunLock lock(run_dir, {}, quick);
    _exit(second().find("its process is running") != std::string::npos ? 0 : 2);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace ananke
