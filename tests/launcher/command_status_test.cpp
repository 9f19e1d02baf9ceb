// `ananke status RUN_DIR` of run folders as a run leaves them, without Slurm.
#include <gtest/gtest.h>

#include "ananke/telemetry.pb.h"
#include "launcher/command.h"
#include "runtime/telemetry/json_lines_observer.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

class CommandStatus : public testing::Test {
 protected:
  CommandStatus() { std::filesystem::create_directories(folder_.path() / "logs"); }
  std::string status() const {
    testing::internal::CaptureStdout();
    for (const Command& command : all_commands()) {
      if (std::string(command.name) != "status") continue;
      try {
        EXPECT_EQ(command.run({folder_.path().string()}), 0);
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
    }
    return testing::internal::GetCapturedStdout();
  }
  // Of as many steps, one by one the rank that is slow; -1: nobody.
  void write_steps(const std::vector<int>& slow) const {
    JsonLinesObserver observer(folder_.path());
    RunEvent event;
    event.set_kind(RunEvent::STARTED);
    observer.on_event(event);
    std::uint64_t step = 0;
    for (const int rank : slow) {
      StepRecord record;
      record.set_step(++step);
      record.mutable_work()->set_straggler(rank < 0 ? 1.05 : 1.4);
      record.mutable_work()->set_straggler_rank(static_cast<std::uint32_t>(std::max(rank, 0)));
      record.mutable_work()->set_waiting(0.25);
      observer.on_step(record);
    }
    event.set_kind(RunEvent::SLOW_RANK);
    event.set_rank(3);
    event.set_host("node7");
    observer.on_event(event);
  }
  const TemporaryFolder folder_;
};

TEST_F(CommandStatus, NamesTheRankThatIsSlowInMostOfTheLastSteps) {
  std::vector<int> slow(100, -1);
  for (std::size_t i = 60; i < 90; ++i) slow[i] = 3;
  slow[90] = 5;
  write_steps(slow);
  const std::string said = status();
  EXPECT_NAMES(
      said, "slow rank    3 on node7 takes 1.40x as long as the median rank for the same work, in 30 of the last 50");
  EXPECT_NAMES(said, "waiting      25% of a step");
}

TEST_F(CommandStatus, NamesNobodyWhoWasSlowLongAgoOrSeldom) {
  std::vector<int> slow(100, -1);
  for (std::size_t i = 0; i < 50; ++i) slow[i] = 3;  // long ago
  for (std::size_t i = 60; i < 70; ++i) slow[i] = 4;
  write_steps(slow);
  EXPECT_EQ(status().find("as long as the median"), std::string::npos);
}

TEST_F(CommandStatus, OfARunWithoutStepsSaysSo) { EXPECT_NAMES(status(), "step         none yet"); }

}  // namespace
}  // namespace ananke
