// The launcher as a process of its own: signals to it, and its sudden death.
#include <fcntl.h>
#include <pwd.h>
#include <sys/wait.h>

#include <csignal>

#include "tests/launcher/launch_fixture.h"

namespace ananke {
namespace {

class LauncherProcess : public LaunchTest {
 protected:
  ~LauncherProcess() override {
    if (launcher > 0 && waitpid(launcher, nullptr, WNOHANG) == 0) {
      kill(launcher, SIGKILL);
      waitpid(launcher, nullptr, 0);
    }
  }
  // As user `uid` where it is not 0.
  void start(int ranks, const std::string& action, unsigned uid = 0) {
    const std::string count = std::to_string(ranks), output = (folder / "output").string();
    launcher = fork();
    if (launcher > 0) return;
    const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    dup2(file, 1);
    dup2(file, 2);
    if (uid != 0 && (setgid(uid) != 0 || setuid(uid) != 0)) _exit(126);
    execl(probe_launcher, probe_launcher, folder.c_str(), count.c_str(), probe, action.c_str(), nullptr);
    _exit(127);
  }
  std::string output() const {
    std::ifstream file(folder / "output");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // All ranks have written this to their logs.
  bool wait_for_logs(int ranks, const std::string& text) {
    return eventually([&] {
      int have = 0;
      for (int rank = 0; rank < ranks; ++rank) have += contains(log_of(rank), text) ? 1 : 0;
      return have == ranks;
    });
  }
  int wait_for_end() {
    int status = 0;
    waitpid(launcher, &status, 0);
    launcher = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  bool wait_for_output(const std::string& text) const {
    return eventually([&] { return contains(output(), text); });
  }
  // More than a second apart.
  void send_term_twice() {
    ASSERT_TRUE(wait_for_logs(1, "training")) << output();
    kill(launcher, SIGTERM);
    ASSERT_TRUE(wait_for_output("received SIGTERM")) << output();
    usleep(1'100'000);
    kill(launcher, SIGTERM);
  }
  std::string stopped_line(int rank) const {
    const std::string log = log_of(rank);
    const auto at = log.find("stopped after step");
    return at == std::string::npos ? "none" : log.substr(at);
  }

  pid_t launcher = -1;
};

TEST_F(LauncherProcess, KilledLeavesNoWorker) {
  start(4, "train");
  ASSERT_TRUE(wait_for_logs(4, "training")) << output();
  kill(launcher, SIGKILL);
  EXPECT_EQ(wait_for_end(), 1000 + SIGKILL);
  EXPECT_TRUE(nobody_left(4));
}

TEST_F(LauncherProcess, EverySignalStopsAllRanksAfterTheSameStep) {
  for (int number : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2}) {
    start(3, "train");
    ASSERT_TRUE(wait_for_logs(3, "training")) << output();
    kill(launcher, number);
    EXPECT_EQ(wait_for_end(), 11) << output();
    EXPECT_NE(stopped_line(0), "none");
    for (int rank : {1, 2}) EXPECT_EQ(stopped_line(rank), stopped_line(0));
    EXPECT_TRUE(nobody_left(3));
    std::filesystem::remove_all(folder / "logs");
  }
}

TEST_F(LauncherProcess, ASignalDuringTheStartStopsTheJobToo) {
  start(3, "train");
  ASSERT_TRUE(eventually([&] { return !log_of(0).empty(); }));
  kill(launcher, SIGTERM);
  EXPECT_EQ(wait_for_end(), 11) << output();
  EXPECT_TRUE(nobody_left(3));
}

TEST_F(LauncherProcess, ASecondInterruptEndsAtOnce) {
  start(3, "busy");
  ASSERT_TRUE(wait_for_logs(3, "training")) << output();
  kill(launcher, SIGINT);
  EXPECT_TRUE(wait_for_output("received SIGINT: stopping after a common step")) << output();
  kill(launcher, SIGTERM);  // a batch system's second signal does not count
  usleep(100'000);
  EXPECT_EQ(waitpid(launcher, nullptr, WNOHANG), 0);
  kill(launcher, SIGINT);
  EXPECT_EQ(wait_for_end(), 11) << output();
  EXPECT_TRUE(contains(output(), "second SIGINT: ending all ranks now")) << output();
  EXPECT_TRUE(nobody_left(3));
}

TEST_F(LauncherProcess, ASecondTermEndsAtOnce) {
  start(1, "busy");
  send_term_twice();
  EXPECT_EQ(wait_for_end(), 11) << output();
  EXPECT_TRUE(contains(output(), "second SIGTERM: ending")) << output();
}

// Slurm sends TERM again at the end of the time, when a checkpoint may still be on its way.
TEST_F(LauncherProcess, ASecondTermDoesNotWhereItIsToBeBorne) {
  setenv("PROBE_PATIENT", "1", 1);
  start(1, "busy");
  unsetenv("PROBE_PATIENT");
  send_term_twice();
  usleep(200'000);
  EXPECT_EQ(waitpid(launcher, nullptr, WNOHANG), 0);
  kill(launcher, SIGINT);
  EXPECT_EQ(wait_for_end(), 11) << output();
  EXPECT_TRUE(contains(output(), "second SIGINT: ending")) << output();
}

TEST_F(LauncherProcess, RunsWithoutPrivileges) {
  const passwd* nobody = getpwnam("nobody");
  if (geteuid() != 0 || nobody == nullptr) GTEST_SKIP() << "only root can become somebody else";
  std::filesystem::permissions(folder, std::filesystem::perms::all);
  start(2, "none", nobody->pw_uid);
  EXPECT_EQ(wait_for_end(), 0) << output() << log_of(0);
  EXPECT_TRUE(contains(output(), "rank 0 is done")) << output();
}

}  // namespace
}  // namespace ananke
