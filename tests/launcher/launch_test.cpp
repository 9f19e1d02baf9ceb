#include "launcher/launch.h"

#include <csignal>
#include <filesystem>

#include "launcher/pmix_server.h"
#include "tests/launcher/launch_fixture.h"

namespace ananke {
namespace {

using What = Cause::What;
using std::chrono::milliseconds;

// A failing rank: who and what is named, the code, everyone gone. That nobody was waited for up to a deadline shows in
// what is named.
struct Expected {
  What what;
  int number;
  int code;
  std::string text;
};

class WorkerFailure : public LaunchTest {
 protected:
  void expect(const LaunchSpec& made, int rank, const Expected& expected) {
    const LaunchResult result = launch(made);
    ASSERT_TRUE(result.cause.has_value());
    EXPECT_EQ(result.cause->rank, rank) << result.report;
    EXPECT_EQ(result.cause->what, expected.what) << result.report;
    EXPECT_EQ(result.cause->number, expected.number) << result.report;
    EXPECT_EQ(result.exit_code, expected.code) << result.report;
    EXPECT_TRUE(contains(result.report, expected.text)) << result.report;
  }
  void expect_acting(const std::string& action, const Expected& expected) {
    expect(spec(3, action, 1), 1, expected);
    const LaunchResult result = launch(spec(1, action, 0));
    EXPECT_TRUE(contains(result.report, "(phase 'acting', step 17)")) << result.report;
    EXPECT_TRUE(contains(result.report, "about to " + action)) << result.report;
  }
};

TEST_F(WorkerFailure, ExitCode) { expect_acting("exit5", {What::exited, 5, 9, "exited with code 5 without"}); }
TEST_F(WorkerFailure, ExitZeroBeforeTheEnd) {
  expect_acting("exit0", {What::exited, 0, 9, "exited with code 0 without"});
}
TEST_F(WorkerFailure, Abort) { expect_acting("abort", {What::killed, SIGABRT, 9, "signal 6 (SIGABRT)"}); }
TEST_F(WorkerFailure, Kill) { expect_acting("kill", {What::killed, SIGKILL, 9, "signal 9 (SIGKILL)"}); }
TEST_F(WorkerFailure, Segv) { expect_acting("segv", {What::killed, SIGSEGV, 9, "signal 11 (SIGSEGV)"}); }
TEST_F(WorkerFailure, ReportedByItself) { expect_acting("numeric", {What::reported, 0, 7, "loss is nan in step 17"}); }

TEST_F(WorkerFailure, StoppedProcess) {
  LaunchSpec made = spec(3, "stop", 2);
  made.deadlines.heartbeat = std::chrono::seconds(3);
  expect(made, 2, {What::silent, 0, 10, "its process is stopped (SIGSTOP"});
}

TEST_F(WorkerFailure, NoProgress) {
  LaunchSpec made = spec(1, "hang", 0);
  made.deadlines.step = milliseconds(700);
  expect(made, 0, {What::no_progress, 0, 10, "made no progress for"});
}

// Long before deadlines.step, since its steps were short; with the stacks of who it is.
TEST_F(WorkerFailure, AStandstillIsToldByWhatStepsUsuallyTakeWithPlacesAndStacks) {
  LaunchSpec made = spec(3, "standstill", 1);
  made.deadlines.step = std::chrono::minutes(10);
  made.deadlines.stalls = {.factor = 5, .least = milliseconds(500), .steps = 3, .stacks = std::chrono::seconds(20)};
  const LaunchResult result = launch(made);
  ASSERT_TRUE(result.cause.has_value()) << result.report;
  EXPECT_EQ(result.cause->rank, 1) << result.report;
  EXPECT_EQ(result.exit_code, 10);
  EXPECT_TRUE(contains(result.report, "(a step usually takes ")) << result.report;
  EXPECT_TRUE(contains(result.report, "(phase 'step', step 9, item 4 of 9, layer.1 forward, microbatch 0)"))
      << result.report;
  EXPECT_TRUE(contains(result.report, "where the others are:\n    ranks 0, 2: step 10, item 4")) << result.report;
  EXPECT_TRUE(contains(result.report, "threads of rank 1 (")) << result.report;
  EXPECT_TRUE(contains(result.report, "stand_still_here")) << result.report;
  EXPECT_TRUE(contains(log_of(0), "stacks of all threads")) << log_of(0);
}

TEST_F(WorkerFailure, DeathIsTheCauseThoughItsVictimsSpeakFirst) {
  expect(spec(4, "victims", 3), 3, {What::killed, SIGKILL, 9, "signal 9 (SIGKILL)"});
}

TEST_F(WorkerFailure, EndsThoseWhoIgnoreTheRequest) {
  expect(spec(3, "deaf", 0), 0, {What::killed, SIGKILL, 9, "rank 0 ("});
}

TEST_F(WorkerFailure, DeathBeforeItJoinsIsNamedAtOnce) {
  expect(spec(3, "stillborn", 1), 1, {What::killed, SIGKILL, 9, "signal 9 (SIGKILL)"});
}

TEST_F(WorkerFailure, ListsAllWhoNeverJoin) {
  LaunchSpec made = spec(4, "nobody");
  made.deadlines.join = milliseconds(700);
  const LaunchResult result = launch(made);
  EXPECT_EQ(result.exit_code, 10) << result.report;
  EXPECT_TRUE(contains(result.report, "job failed: rank 0 (")) << result.report;
  EXPECT_TRUE(contains(result.report, "where the others are:\n    ranks 1-3: not joined")) << result.report;
}

// The first of the ranks: on a slow machine others may be late as well.
TEST_F(WorkerFailure, NamesWhoNeverJoins) {
  LaunchSpec made = spec(3, "absent", 0);
  made.deadlines.join = milliseconds(1500);
  expect(made, 0, {What::not_joined, 0, 10, "did not join within 1.5 s"});
}

TEST_F(WorkerFailure, NamesWhoIsMissingInAnExchange) {
  LaunchSpec made = spec(3, "missing", 2);
  made.deadlines.exchange = milliseconds(500);
  const LaunchResult result = launch(made);
  EXPECT_EQ(result.exit_code, 10) << result.report;
  EXPECT_TRUE(contains(result.report, "exchange 'end' of ranks 0, 2: rank 2 did not come within 500 ms"))
      << result.report;
}

TEST_F(WorkerFailure, AfterItsWorkIsDone) {
  expect(spec(2, "teardown", 1), 1,
         {What::teardown, SIGABRT, 9, "had finished its work, but its process then was killed"});
}

TEST_F(WorkerFailure, ProgramThatCannotBeExecuted) {
  LaunchSpec made = spec(2, "none");
  made.program = folder / "nothing";
  LaunchResult result = launch(made);
  EXPECT_EQ(result.exit_code, 8);
  EXPECT_TRUE(contains(result.report, "error: cannot execute the worker")) << result.report;
  std::ofstream(folder / "text") << "no program\n";
  std::filesystem::permissions(folder / "text", std::filesystem::perms::owner_all);
  made.program = folder / "text";
  result = launch(made);
  EXPECT_EQ(result.exit_code, 9);
  EXPECT_TRUE(contains(result.report, "ananke: cannot execute")) << result.report;
}

// In a process of its own: libpmix serves once.
[[noreturn]] void look_at_threads_of_a_server() {
  int threads = 0, safe = 0;
  auto server = std::make_unique<PmixServer>(1);
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(getpid())) continue;
    ++threads;
    std::ifstream status(task.path() / "status");
    for (std::string word; status >> word;) {
      if (word != "SigBlk:") continue;
      std::uint64_t blocked = 0;
      status >> std::hex >> blocked >> std::dec;
      safe += static_cast<int>(blocked >> (SIGPIPE - 1) & 1);
    }
  }
  server.reset();
  _exit(threads > 0 && safe == threads ? 0 : 1);
}

// What it writes to clients that were killed while they connected.
TEST(PmixServerThreads, CannotEndTheLauncherByWritingToOneThatIsGone) {
  EXPECT_EXIT(look_at_threads_of_a_server(), ::testing::ExitedWithCode(0), "");
}

using LocalLaunch = LaunchTest;

TEST_F(LocalLaunch, RunsToTheEndAndKeepsArgv0) {
  LaunchSpec made = spec(4, "late", 2);
  made.arguments[0] = "/some/where/ananke";
  const LaunchResult result = launch(made);
  EXPECT_EQ(result.exit_code, 0) << result.report;
  EXPECT_EQ(console.size(), 4u);
  for (int rank = 0; rank < 4; ++rank) EXPECT_TRUE(contains(log_of(rank), "argv0 /some/where/ananke\n"));
}

TEST_F(LocalLaunch, TalkativeWorkersGoToTheirLogs) {
  const LaunchResult result = launch(spec(2, "talk", 0));
  EXPECT_EQ(result.exit_code, 0) << result.report;
  EXPECT_GT(std::filesystem::file_size(folder / "logs/rank-0.log"), 8'000'000u);
}

TEST_F(LocalLaunch, ReportsOnlyThisRunsLines) {
  std::filesystem::create_directories(folder / "logs");
  std::ofstream(folder / "logs/rank-0.log") << "a line of an earlier run\n";
  const LaunchResult result = launch(spec(1, "exit5", 0));
  EXPECT_FALSE(contains(result.report, "earlier run")) << result.report;
  EXPECT_TRUE(contains(log_of(0), "earlier run"));
}

}  // namespace
}  // namespace ananke
