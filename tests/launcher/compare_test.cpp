#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <sstream>

#include "ananke/telemetry.pb.h"
#include "launcher/compare_runs.h"
#include "launcher/compare_text.h"
#include "runtime/checkpoint/run_lock.h"
#include "runtime/telemetry/json_lines_observer.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

constexpr const char* job_text = R"(
  name: "tiny" run_dir: "run"
  model { vocab_size: 16 hidden_size: 8 num_hidden_layers: 1 num_attention_heads: 1 head_dim: 8 num_key_value_heads: 1
          num_experts: 2 num_experts_per_tok: 1 moe_intermediate_size: 4 }
  training { steps: 40 sequence_length: 8 rows_per_step: 2 rows_per_microbatch: 1 }
  data { generated { documents: 4 } }
  resolved { ranks: 2 version: "1" started: "today" source: "here" })";

struct Written {
  std::uint64_t steps = 20;
  double loss = 4;  // of step 1; falls by a tenth each
  std::uint64_t differs_from = 1000;
  double seconds = 0.5;
  RunEvent::Kind end = RunEvent::FINISHED;  // STARTED: none
  std::string job = job_text;
};

class Compare : public testing::Test {
 protected:
  std::filesystem::path run(const std::string& name, const Written& written) {
    folder_.write(name + "/job.textproto", written.job);
    JsonLinesObserver observer(folder_.path() / name);
    RunEvent event;
    event.set_kind(RunEvent::STARTED);
    observer.on_event(event);
    for (std::uint64_t step = 1; step <= written.steps; ++step) {
      StepRecord record;
      record.set_step(step);
      record.set_loss(written.loss - 0.1 * static_cast<double>(step) + (step >= written.differs_from ? 1e-6 : 0));
      record.set_seconds(step <= 5 ? 100 : written.seconds);  // warm-up
      record.set_tokens_per_second(16 / record.seconds());
      record.set_total_valid_tokens(16 * step);
      record.set_memory_bytes(step == 3 ? 4096 : 2048);
      for (const char* unit : {"dense", "experts"}) {
        TrafficRecord* traffic = record.add_traffic();
        traffic->set_resource("network");
        traffic->set_axis("shard");
        traffic->set_unit(unit);
        traffic->set_direction("gather");
        traffic->set_bytes(50);
      }
      observer.on_step(record);
      if (step % 10 != 0) continue;
      for (const char* set : {"wiki", "code"}) {
        EvaluationRecord evaluation;
        evaluation.set_held_out(set);
        evaluation.set_step(step);
        evaluation.set_loss(record.loss());
        if (std::string(set) == "wiki") evaluation.set_bits_per_byte(1.5);
        observer.on_evaluation(evaluation);
      }
    }
    event.set_kind(written.end);
    event.set_step(written.steps);
    if (written.end != RunEvent::STARTED) observer.on_event(event);
    return folder_.path() / name;
  }
  std::string changed(const std::string& from, const std::string& to) {
    std::string text = job_text;
    return text.replace(text.find(from), from.size(), to);
  }
  static bool notes(const RunComparison& comparison, const std::string& part) {
    for (const std::string& note : comparison.notes()) {
      if (note.find(part) != std::string::npos) return true;
    }
    return false;
  }
  TemporaryFolder folder_;
};

TEST_F(Compare, RefusesWhatIsNoRun) {
  const auto a = run("a", {});
  EXPECT_ERROR(compare_runs(a, folder_.path() / "none"), ErrorKind::data, "there is no folder", "none");
  EXPECT_ERROR(compare_runs(a / "steps.jsonl", a), ErrorKind::data, "is a file", a.string());
  EXPECT_ERROR(compare_runs(a, folder_.path()), ErrorKind::data, "no run's folder", "job.textproto does not exist");
}

TEST_F(Compare, FindsEqualRunsEqual) {
  const RunComparison comparison = compare_runs(run("a", {}), run("b", {}));
  EXPECT_EQ(comparison.configuration_size(), 0);
  EXPECT_GT(comparison.configuration_fields(), 10u);
  EXPECT_EQ(comparison.common_steps(), 20u);
  EXPECT_EQ(comparison.equal_steps(), 20u);
  EXPECT_FALSE(comparison.has_first_difference());
  EXPECT_EQ(comparison.largest_difference().value(), 0);
  EXPECT_EQ(comparison.notes_size(), 0);
  const std::string text = comparison_text(comparison, 100);
  EXPECT_NE(text.find("all 20 common steps are equal to the last bit"), std::string::npos) << text;
  EXPECT_TRUE(notes(compare_runs(run("a", {}), folder_.path() / "a"), "the same folder"));
}

TEST_F(Compare, TellsWhereLossesPartAndWhatRunsCost) {
  Written other;
  other.steps = 12;
  other.differs_from = 7;
  other.seconds = 1;
  other.job = changed("rows_per_microbatch: 1", "rows_per_microbatch: 2");
  const RunComparison comparison = compare_runs(run("a", {}), run("b", other));
  EXPECT_EQ(comparison.loss_size(), 20);
  EXPECT_EQ(comparison.common_steps(), 12u);
  EXPECT_EQ(comparison.equal_steps(), 6u);
  EXPECT_EQ(comparison.first_difference().step(), 7u);
  EXPECT_NEAR(comparison.first_difference().value(), 1e-6, 1e-12);
  EXPECT_EQ(comparison.final_difference().step(), 12u);
  EXPECT_EQ(comparison.a().tokens_per_second(), 32) << "the slow first steps are left out";
  EXPECT_EQ(comparison.a().measured_steps(), 15u);
  EXPECT_EQ(comparison.b().seconds_per_step(), 1);
  ASSERT_EQ(comparison.a().resources_size(), 2);
  EXPECT_EQ(comparison.a().resources(0).name(), "memory");
  EXPECT_EQ(comparison.a().resources(0).bytes(), 4096u) << "the peak, not the median";
  EXPECT_EQ(comparison.a().resources(1).name(), "network shard gather");
  EXPECT_EQ(comparison.a().resources(1).bytes(), 100u) << "of all units";
  ASSERT_EQ(comparison.configuration_size(), 1);
  EXPECT_EQ(comparison.configuration(0).path(), "training.rows_per_microbatch");
  EXPECT_EQ(comparison.configuration(0).b(), "2");
  ASSERT_EQ(comparison.evaluations_size(), 4);
  EXPECT_EQ(comparison.evaluations(0).held_out(), "wiki");
  EXPECT_TRUE(comparison.evaluations(0).has_b() && comparison.evaluations(0).has_a_bits_per_byte());
  EXPECT_FALSE(comparison.evaluations(1).has_b()) << "B has no step 20";
}

TEST_F(Compare, TakesRunsThatAreNotAtTheirEnd) {
  Written open;
  open.steps = 3;
  open.end = RunEvent::STARTED;
  const auto b = run("b", open);
  std::ofstream(b / "steps.jsonl", std::ios::app) << R"({"step":{"step":4,"lo)";
  const RunComparison comparison = compare_runs(run("a", {}), b);
  EXPECT_EQ(comparison.a().state(), "finished");
  EXPECT_EQ(comparison.b().state(), "ended early");
  EXPECT_EQ(comparison.b().last_step(), 3u);
  EXPECT_EQ(comparison.b().measured_steps(), 2u);
  EXPECT_TRUE(notes(comparison, "B: the last line of steps.jsonl is not whole"));
  {
    const RunLock lock(b);
    EXPECT_EQ(compare_runs(b, b).a().state(), "running");
  }
  folder_.write("c/job.textproto", job_text);
  const RunComparison nothing = compare_runs(folder_.path() / "c", folder_.path() / "c");
  EXPECT_EQ(nothing.a().state(), "not started");
  EXPECT_TRUE(notes(nothing, "has no steps.jsonl"));
  EXPECT_NE(comparison_text(nothing, 80).find("no run has a step on record"), std::string::npos);
}

TEST_F(Compare, TreatsNumbersThatAreNoneAsTheyAre) {
  Written broken;
  broken.loss = NAN;
  const auto a = run("a", {}), b = run("b", broken);
  EXPECT_EQ(compare_runs(b, b).equal_steps(), 20u);
  const RunComparison comparison = compare_runs(a, b);
  EXPECT_EQ(comparison.equal_steps(), 0u);
  EXPECT_EQ(comparison.largest_difference().step(), 1u);
  EXPECT_TRUE(std::isnan(comparison.largest_difference().value()));
}

TEST_F(Compare, SaysWhatMakesNumbersIncomparable) {
  const auto a = run("a", {});
  const auto with = [&](const std::string& from, const std::string& to) {
    Written other;
    other.job = changed(from, to);
    return compare_runs(a, run("b", other));
  };
  EXPECT_TRUE(notes(with("vocab_size: 16", "vocab_size: 32"), "the vocabularies differ (16 and 32 tokens)"));
  EXPECT_TRUE(notes(with("hidden_size: 8", "hidden_size: 16"), "the models differ"));
  EXPECT_TRUE(notes(with("documents: 4", "documents: 5"), "other documents"));
  EXPECT_TRUE(notes(with("rows_per_step: 2", "rows_per_step: 4"), "a step is 16 tokens in A and 32 in B"));
  const RunComparison unreadable = with("name: \"tiny\"", "name: tiny\"");
  EXPECT_TRUE(notes(unreadable, "B: the configuration cannot be compared"));
  EXPECT_EQ(unreadable.common_steps(), 20u) << "the rest is compared all the same";
  EXPECT_FALSE(unreadable.has_configuration_fields());
}

TEST_F(Compare, KeepsToTheWidthAndCutsNothing) {
  Written other;
  other.steps = 2000;
  const std::string name(150, 'x');
  other.job = changed("documents: 4 }", "documents: 4 } tokens: \"" + name + "\"");
  const RunComparison comparison = compare_runs(run("a", {}), run("b", other));
  const std::string text = comparison_text(comparison, 72);
  EXPECT_NE(text.find("B  \"" + name + "\""), std::string::npos) << text;
  std::istringstream lines(text);
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const bool one_word =
        line.find(folder_.path().string()) != std::string::npos || line.find(name) != std::string::npos;
    EXPECT_TRUE(one_word || line.size() <= 72) << line;
  }
  EXPECT_LT(count, 60u) << text;
  EXPECT_NE(text.find("\n  2000  "), std::string::npos) << "the last step is shown\n" << text;
}

}  // namespace
}  // namespace ananke
