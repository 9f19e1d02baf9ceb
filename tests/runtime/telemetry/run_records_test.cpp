#include "runtime/telemetry/run_records.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/telemetry/json_lines_observer.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

RunEvent event_of(RunEvent::Kind kind, std::uint64_t step) {
  RunEvent event;
  event.set_kind(kind);
  event.set_step(step);
  return event;
}

StepRecord step_of(std::uint64_t step, double loss) {
  StepRecord record;
  record.set_step(step);
  record.set_loss(loss);
  return record;
}

EvaluationRecord evaluation_of(const std::string& set, std::uint64_t step) {
  EvaluationRecord record;
  record.set_held_out(set);
  record.set_step(step);
  return record;
}

TEST(RunRecords, OfAFolderWithoutAnyAreNoneAndOfWhatIsNoFileRefused) {
  const TemporaryFolder folder;
  EXPECT_FALSE(read_run_records(folder.path()).found);
  EXPECT_FALSE(read_run_records(folder.path() / "missing").found);
  folder.write("steps.jsonl", "");
  const RunRecords empty = read_run_records(folder.path());
  EXPECT_TRUE(empty.found && empty.steps.empty() && !empty.torn);
  std::filesystem::create_directories(folder.path() / "b" / "steps.jsonl");
  EXPECT_ERROR(read_run_records(folder.path() / "b"), ErrorKind::data, "b/steps.jsonl");
}

TEST(RunRecords, LeaveOutATornLastLineAndCountOtherDamage) {
  const TemporaryFolder folder;
  const std::string step = R"({"step":{"step":1,"loss":2.5}})";
  folder.write("steps.jsonl", step + "\n" + R"({"step":{"step":2,"lo)");
  RunRecords records = read_run_records(folder.path());
  EXPECT_TRUE(records.torn);
  EXPECT_EQ(records.unreadable, 0u);
  EXPECT_EQ(records.steps.size(), 1u);
  folder.write("steps.jsonl", "\0\0\n" + step + "\nnonsense\n[]\n" + R"({"step":{"step":2,"new_field":[{}]}})");
  records = read_run_records(folder.path());
  EXPECT_FALSE(records.torn) << "a last line that is whole but for its end is a record";
  EXPECT_EQ(records.unreadable, 2u);
  EXPECT_EQ(records.first_unreadable, 2u) << "counted from 1, empty lines aside";
  EXPECT_EQ(records.steps.size(), 2u);
}

TEST(RunRecords, AreWhatTheRunWrote) {
  const TemporaryFolder folder;
  {
    JsonLinesObserver observer(folder.path());
    observer.on_event(event_of(RunEvent::STARTED, 0));
    observer.on_step(step_of(1, 3.25));
    observer.on_step(step_of(2, NAN));
    observer.on_evaluation(evaluation_of("wiki", 2));
    observer.on_evaluation(evaluation_of("code", 2));
    observer.on_step(step_of(3, 9));
  }
  {
    JsonLinesObserver observer(folder.path());
    observer.on_event(event_of(RunEvent::RESUMED, 2));
    observer.on_step(step_of(3, 3));
    observer.on_evaluation(evaluation_of("wiki", 3));
  }
  const RunRecords records = read_run_records(folder.path());
  ASSERT_EQ(records.steps.size(), 3u);
  EXPECT_TRUE(std::isnan(records.steps.at(2).loss()));
  EXPECT_EQ(records.steps.at(3).loss(), 3);
  EXPECT_EQ(records.held_out, (std::vector<std::string>{"wiki", "code"}));
  EXPECT_EQ(records.evaluations.at("wiki").size(), 2u);
  EXPECT_EQ(records.evaluations.at("code").size(), 1u);
  EXPECT_EQ(records.first_steps, (std::set<std::uint64_t>{1, 3}));
  ASSERT_EQ(records.events.size(), 2u);
  EXPECT_EQ(records.events[1].kind(), RunEvent::RESUMED);
}

}  // namespace
}  // namespace ananke
