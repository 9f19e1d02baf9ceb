#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "ananke/job.pb.h"
#include "ananke/telemetry.pb.h"
#include "runtime/base/error.h"
#include "runtime/telemetry/console_observer.h"
#include "runtime/telemetry/json_lines_observer.h"
#include "runtime/telemetry/observer_list.h"

namespace ananke {
namespace {

StepRecord step_record(std::uint64_t step) {
  StepRecord record;
  record.set_step(step);
  record.set_loss(5.25);
  record.set_gradient_norm(0.5);
  record.set_learning_rate(3e-4);
  record.set_tokens_per_second(12345);
  record.set_memory_bytes(130 << 20);
  record.set_seconds(2);
  return record;
}

RunEvent event_of(RunEvent::Kind kind, std::uint64_t step) {
  RunEvent event;
  event.set_kind(kind);
  event.set_step(step);
  return event;
}

Job job_of(std::uint32_t steps) {
  Job job;
  job.mutable_training()->set_steps(steps);
  return job;
}

class JsonLines : public testing::Test {
 protected:
  void SetUp() override {
    folder =
        std::filesystem::temp_directory_path() /
        fmt::format("ananke-telemetry-{}-{}", testing::UnitTest::GetInstance()->current_test_info()->name(), getpid());
    std::filesystem::create_directories(folder);
    file = folder / "steps.jsonl";
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  std::vector<std::string> lines(const std::filesystem::path& path) const {
    std::ifstream stream(path);
    std::vector<std::string> result;
    for (std::string line; std::getline(stream, line);) result.push_back(line);
    return result;
  }
  std::filesystem::path folder, file;
};

TEST_F(JsonLines, AFileThatCannotBeOpenedOrWrittenIsNoFailure) {
  JsonLinesObserver nowhere(folder / "missing");
  nowhere.on_step(step_record(1));
  JsonLinesObserver resumed_nowhere(folder / "missing");
  resumed_nowhere.on_event(event_of(RunEvent::RESUMED, 3));
  resumed_nowhere.on_step(step_record(4));
  std::filesystem::create_directory(file);
  JsonLinesObserver on_a_folder(folder);
  on_a_folder.on_event(event_of(RunEvent::RESUMED, 3));
  on_a_folder.on_step(step_record(4));
}

// A file-size limit stands for a full disk.
TEST_F(JsonLines, ALineThatDoesNotFitIsNoFailure) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100, 100};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::vector<std::string> told;
    JsonLinesObserver observer(folder, [&](const std::string& line) { told.push_back(line); });
    for (std::uint64_t step = 1; step <= 3; ++step) observer.on_step(step_record(step));
    const std::string wanted = "warning: cannot write " + file.string() + ": File too large; the run itself";
    ::_exit(told.size() == 1 && told[0].starts_with(wanted) ? 0 : 1);  // once, where the user looks
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(std::filesystem::file_size(file), 100u);
}

TEST_F(JsonLines, NumbersStayNumbersAndNotFiniteOnesAreNamed) {
  JsonLinesObserver observer(folder);
  StepRecord record = step_record(7);
  record.set_gradient_norm(std::numeric_limits<double>::quiet_NaN());
  record.set_loss(-std::numeric_limits<double>::infinity());
  record.set_total_valid_tokens(1ull << 53);
  record.set_skipped(true);
  observer.on_step(record);
  RunEvent event;
  event.set_kind(RunEvent::CHECKPOINT);
  event.set_step(7);
  event.set_text("said \"so\" \\ in\ttwo\nlines, ü");
  observer.on_event(event);
  EvaluationRecord evaluation;
  evaluation.set_step(7);
  evaluation.set_bits_per_token(0.1);
  observer.on_evaluation(evaluation);
  const auto written = lines(file);
  ASSERT_EQ(written.size(), 3u);
  EXPECT_EQ(
      written[0],
      "{\"step\":{\"step\":7,\"loss\":\"-Infinity\",\"gradient_norm\":\"NaN\",\"learning_rate\":0.0003,"
      "\"total_valid_tokens\":9007199254740992,\"seconds\":2,\"tokens_per_second\":12345,\"memory_bytes\":136314880,"
      "\"skipped\":true}}");
  EXPECT_EQ(written[2], "{\"evaluation\":{\"step\":7,\"bits_per_token\":0.1}}");
  for (const auto& line : written) {
    TelemetryLine parsed;
    ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(line, &parsed).ok()) << line;
    if (parsed.has_event()) {
      EXPECT_EQ(parsed.event().text(), event.text());
    }
    if (parsed.has_step()) {
      EXPECT_TRUE(std::isnan(parsed.step().gradient_norm()));
    }
  }
}

TEST_F(JsonLines, AListIsAListAndAnEmptyOneIsLeftOut) {
  JsonLinesObserver observer(folder);
  StepRecord record;
  record.set_step(1);
  observer.on_step(record);
  for (const char* axis : {"shard", "expert"}) {
    TrafficRecord* traffic = record.add_traffic();
    traffic->set_resource("network");
    traffic->set_axis(axis);
    traffic->set_bytes(1ull << 60);
  }
  observer.on_step(record);
  const auto written = lines(file);
  ASSERT_EQ(written.size(), 2u);
  EXPECT_EQ(written[0], "{\"step\":{\"step\":1}}");
  EXPECT_EQ(written[1],
            "{\"step\":{\"step\":1,\"traffic\":[{\"resource\":\"network\",\"axis\":\"shard\",\"bytes\":"
            "1152921504606846976},{\"resource\":\"network\",\"axis\":\"expert\",\"bytes\":1152921504606846976}]}}");
}

TEST_F(JsonLines, AResumedRunHasEveryStepOnceAndItsEvents) {
  {
    JsonLinesObserver observer(folder);
    observer.on_event(event_of(RunEvent::STARTED, 0));
    for (std::uint64_t step = 1; step <= 5; ++step) observer.on_step(step_record(step));
    EvaluationRecord evaluation;
    for (std::uint64_t step : {2, 4}) {
      evaluation.set_step(step);
      observer.on_evaluation(evaluation);
    }
  }
  std::ofstream(file, std::ios::app) << "{\"step\":{\"step\":6,\"lo";  // torn by a kill
  {
    JsonLinesObserver observer(folder);
    EXPECT_EQ(lines(file).size(), 9u);
    observer.on_event(event_of(RunEvent::RESUMED, 3));
    observer.on_event(event_of(RunEvent::RESUMED, 3));
    EXPECT_EQ(lines(file).size(), 7u);  // event, steps 1 to 3, evaluation 2, the two events
    for (std::uint64_t step = 4; step <= 6; ++step) observer.on_step(step_record(step));
  }
  const auto written = lines(file);
  ASSERT_EQ(written.size(), 10u);
  EXPECT_EQ(written[0], "{\"event\":{\"kind\":\"STARTED\",\"step\":0}}");
  for (std::uint64_t step = 1; step <= 6; ++step) {
    const auto start = fmt::format("{{\"step\":{{\"step\":{},", step);
    EXPECT_EQ(std::count_if(written.begin(), written.end(), [&](const auto& line) { return line.starts_with(start); }),
              1);
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
}

TEST_F(JsonLines, AFreshRunKeepsTheOldFileAside) {
  std::ofstream(file) << "before\n";
  JsonLinesObserver observer(folder);
  observer.on_step(step_record(1));
  EXPECT_EQ(lines(file).size(), 1u);
  EXPECT_EQ(lines(file.string() + ".old"), std::vector<std::string>{"before"});
}

TEST(ObserverListTest, OneThatThrowsIsNotToldAnyMoreAndTheOthersAre) {
  struct Counter : Observer {
    explicit Counter(int& count, bool bad) : count(count), bad(bad) {}
    void on_step(const StepRecord&) override {
      ++count;
      if (bad) throw std::runtime_error("no room");
    }
    void on_evaluation(const EvaluationRecord&) override { ++count; }
    void on_event(const RunEvent&) override { ++count; }
    int& count;
    bool bad;
  };
  int bad = 0, good = 0;
  ObserverList list;
  list.add("bad", std::make_unique<Counter>(bad, true));
  list.add("good", std::make_unique<Counter>(good, false));
  list.on_step(step_record(1));
  list.on_step(step_record(2));
  list.on_evaluation({});
  list.on_event({});
  EXPECT_EQ(bad, 1);
  EXPECT_EQ(good, 4);
}

TEST(ConsoleObserverTest, SaysAllOfAStepInOneLine) {
  std::vector<std::string> lines;
  ConsoleObserver observer(job_of(120), [&](const std::string& line) { lines.push_back(line); });
  observer.on_step(step_record(20));
  EXPECT_EQ(
      lines.at(0),
      "step  20/120 | loss 5.2500 | 12.3K tokens/s | gradient norm 0.5 | lr 0.0003 | memory 130 MiB | left 3 min 20 s");
  StepRecord skipped = step_record(120);
  skipped.set_loss(std::numeric_limits<double>::quiet_NaN());
  skipped.set_skipped(true);
  observer.on_step(skipped);
  EXPECT_NE(lines.at(1).find("loss nan"), std::string::npos) << lines[1];
  EXPECT_NE(lines.at(1).find("left 0 ms | SKIPPED: not finite"), std::string::npos) << lines[1];
}

TEST(ConsoleObserverTest, TellsReservedMemoryRetriesAndReadsWhereThereIsMoreThanTheUsual) {
  std::vector<std::string> lines;
  ConsoleObserver observer(job_of(120), [&](const std::string& line) { lines.push_back(line); });
  StepRecord record = step_record(1);
  record.set_memory_reserved_bytes(130 << 20);
  record.set_memory_retries(0);
  record.set_device_reads(1);
  observer.on_step(record);
  EXPECT_NE(lines.at(0).find("| memory 130 MiB | left"), std::string::npos) << lines[0];
  record.set_memory_reserved_bytes(132 << 20);
  record.set_memory_retries(3);
  record.set_device_reads(17);
  observer.on_step(record);
  EXPECT_NE(lines.at(1).find("| memory 130 MiB of 132 MiB reserved, 3 RETRIES | 17 host reads | left"),
            std::string::npos)
      << lines[1];
}

TEST(ConsoleObserverTest, NamesTheBusiestLayerAndMarksAForcedBalance) {
  std::vector<std::string> lines;
  ConsoleObserver observer(job_of(120), [&](const std::string& line) { lines.push_back(line); });
  StepRecord record = step_record(1);
  RoutingRecord& routing = *record.mutable_routing();
  for (const double imbalance : {1.5, 3.25, 2.0}) {
    routing.add_layer(static_cast<std::uint32_t>(2 * routing.layer_size() + 1));
    routing.add_imbalance(imbalance);
    routing.add_dropped(0);
  }
  record.set_auxiliary_loss(0.0123);
  observer.on_step(record);
  EXPECT_NE(lines.at(0).find("| auxiliary 0.0123 | busiest expert 3.25x in layer 3"), std::string::npos) << lines[0];
  EXPECT_EQ(lines.at(0).find("FORCED"), std::string::npos);
  EXPECT_EQ(lines.at(0).find("DROPPED"), std::string::npos);
  record.set_forced_balance(true);
  routing.set_dropped(1, 17);
  observer.on_step(record);
  EXPECT_NE(lines.at(1).find("DROPPED 17 choices | FORCED BALANCE"), std::string::npos) << lines[1];
}

TEST(ConsoleObserverTest, NamesWhoHasMoreWorkAndWhoIsSlowTimeAndAgain) {
  std::vector<std::string> lines;
  ConsoleObserver observer(job_of(120), [&](const std::string& line) { lines.push_back(line); });
  const auto line_of = [&](double largest, double slowest, std::uint32_t slowest_rank, double slowest_work) {
    StepRecord record = step_record(1);
    WorkRecord& work = *record.mutable_work();
    work.set_largest(largest);
    work.set_largest_rank(3);
    work.set_slowest(slowest);
    work.set_slowest_rank(slowest_rank);
    work.set_slowest_work(slowest_work);
    work.set_straggler(slowest / slowest_work);
    work.set_straggler_rank(slowest_rank);
    observer.on_step(record);
    return lines.back();
  };
  EXPECT_EQ(line_of(1.2, 1.2, 1, 1).find("rank"), std::string::npos) << lines.back();
  EXPECT_NE(line_of(1.35, 1, 1, 1).find(" | rank 3 has 1.35x the work"), std::string::npos) << lines.back();
  for (int step = 1; step <= 5; ++step) {
    const bool said =
        line_of(1, 1.5, 2, 1.1).find(" | rank 2 takes 1.36x as long for the same work: its node is slow") !=
        std::string::npos;
    EXPECT_EQ(said, step == 5) << lines.back();
  }
  EXPECT_EQ(line_of(1, 1.5, 4, 1.1).find("rank"), std::string::npos) << "another rank: " << lines.back();
  for (int step = 2; step <= 5; ++step) line_of(1, 1.5, 4, 1.45);
  EXPECT_NE(lines.back().find("for 1.45x the work: its rows"), std::string::npos) << lines.back();
  EXPECT_EQ(line_of(1, 1.2, 4, 1).find("rank"), std::string::npos) << lines.back();
}

TEST_F(JsonLines, ListsOfALayerStandAsArrays) {
  JsonLinesObserver observer(folder);
  StepRecord record = step_record(1);
  RoutingRecord& routing = *record.mutable_routing();
  for (const std::uint32_t layer : {1u, 3u}) {
    routing.add_layer(layer);
    routing.add_load_max(layer * 1.5);
  }
  observer.on_step(record);
  const std::string line = lines(file).at(0);
  EXPECT_NE(line.find("\"routing\":{\"layer\":[1,3],\"load_max\":[1.5,4.5]}"), std::string::npos) << line;
  TelemetryLine read;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(line, &read).ok());
  EXPECT_EQ(read.step().SerializeAsString(), record.SerializeAsString());
}

TEST(ConsoleObserverTest, TimeLeftForgetsTheSlowFirstStep) {
  std::vector<std::string> lines;
  ConsoleObserver observer(job_of(103), [&](const std::string& line) { lines.push_back(line); });
  for (std::uint64_t step = 1; step <= 3; ++step) {
    StepRecord record = step_record(step);
    record.set_seconds(step == 1 ? 60 : 0.3);
    observer.on_step(record);
  }
  EXPECT_NE(lines.at(2).find("left 30.0 s"), std::string::npos) << lines[2];
}

TEST(ConsoleObserverTest, EvaluationsAndEvents) {
  std::vector<std::string> lines;
  Job job = job_of(10);
  for (const char* name : {"code", "wikipedia"}) job.mutable_evaluation()->add_held_out()->set_name(name);
  ConsoleObserver observer(job, [&](const std::string& line) { lines.push_back(line); });
  EvaluationRecord evaluation;
  evaluation.set_step(10);
  evaluation.set_loss(2.0);
  evaluation.set_bits_per_token(2.885);
  evaluation.set_valid_tokens(65536);
  evaluation.set_seconds(1.5);
  evaluation.set_held_out("code");
  observer.on_evaluation(evaluation);
  evaluation.set_held_out("wikipedia");
  evaluation.set_bits_per_byte(0.75);
  observer.on_evaluation(evaluation);
  RunEvent event;
  event.set_kind(RunEvent::RESUMED);
  event.set_step(4);
  observer.on_event(event);
  event.set_text("run/checkpoints/step-00000004");
  observer.on_event(event);
  EXPECT_EQ(lines, (std::vector<std::string>{
                       "evaluation after step 10 | code      | loss 2.0000 | 2.8850 bits/token | 65.5K tokens in 1.5 s",
                       "evaluation after step 10 | wikipedia | loss 2.0000 | 2.8850 bits/token | 0.7500 bits/byte | "
                       "65.5K tokens in 1.5 s",
                       "resumed at step 4", "resumed at step 4: run/checkpoints/step-00000004"}));
}

}  // namespace
}  // namespace ananke
