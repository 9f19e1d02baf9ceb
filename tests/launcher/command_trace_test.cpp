// `ananke trace` on traces made by hand: what runs when is known to the microsecond.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "launcher/command.h"
#include "launcher/trace_summary.h"
#include "runtime/telemetry/trace_file.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

using std::chrono::microseconds;

int run(const std::vector<std::string>& arguments) {
  for (const Command& command : all_commands()) {
    if (std::string(command.name) == "trace") return command.run(arguments);
  }
  ADD_FAILURE() << "there is no command trace";
  return -1;
}

std::string output_of(const std::vector<std::string>& arguments) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(run(arguments), 0);
  return testing::internal::GetCapturedStdout();
}

TraceEvent event(const std::string& stream, const std::string& kind, const std::string& name, std::int64_t begin,
                 std::int64_t end, const std::string& launcher = "") {
  return {stream, kind, name, launcher, begin, end};
}

// 100 ns: compute works in [10, 40) and [60, 70), network in [0, 20) and [50, 55).
TraceRecords records() {
  TraceRecords records;
  records.job = "tiny";
  records.steps = {2, 3};
  records.step = 3;
  records.begin = 0;
  records.end = 100;
  records.events = {event("host", "phase", "layer.0 forward", 0, 90),
                    event("network", "collective", "all_gather shard", -10, 20),
                    event("compute", "wait", "wait", 0, 10),
                    event("compute", "operator", "linear.forward", 10, 25),
                    event("compute", "operator", "linear.forward", 25, 40),
                    event("network", "collective", "all_gather shard", 50, 55),
                    event("compute", "operator", "attention.forward", 60, 70),
                    event("compute", "operator", "linear.forward", 120, 140)};
  return records;
}

class CommandTrace : public testing::Test {
 protected:
  void write(int rank, std::uint64_t step) const {
    Trace trace;
    trace.open(TraceKind::step, {fmt::format("step {}", step)});
    const auto begin = TraceClock::now();
    trace.open(TraceKind::operation, {fmt::format("linear.of_rank_{}", rank)});
    trace.close();
    while (TraceClock::now() < begin + microseconds(200)) {
    }
    trace.close();
    trace.add({"compute", TraceKind::launched, {}, begin, begin + microseconds(100), 2});
    trace.note("a remark");
    TraceFile({folder_.path(), "tiny", rank, 2, step - 1}).write(step, trace);
  }
  std::string run_dir() const { return folder_.path().string(); }
  TemporaryFolder folder_;
};

TEST_F(CommandTrace, RefusesWrongUseAndWhatIsNotThere) {
  const auto misused = [](const std::vector<std::string>& arguments) {
    return refusal(ErrorKind::usage, [&] { run(arguments); });
  };
  EXPECT_NAMES(misused({}), "exactly one RUN_OR_FILE");
  EXPECT_NAMES(misused({run_dir(), "--rank", "-1"}), "--rank -1 is no number of at least 0");
  EXPECT_NAMES(misused({run_dir(), "--top=-2"}), "--top -2");
  EXPECT_NAMES(misused({run_dir(), "--step", "0"}), "--step 0 is no number of at least 1");
  const auto missing = [](const std::vector<std::string>& arguments) {
    return refusal(ErrorKind::data, [&] { run(arguments); });
  };
  EXPECT_NAMES(missing({run_dir() + "/none"}), "there is no");
  EXPECT_NAMES(missing({run_dir()}), "telemetry { trace_steps: [3] }");
  const std::string loop = run_dir() + "/loop", pipe = run_dir() + "/pipe";
  std::filesystem::create_symlink("loop", loop);
  EXPECT_NAMES(missing({loop}), "is neither a run's folder nor a file: Too many levels of symbolic links");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_NAMES(missing({pipe}), "is neither a run's folder nor a file");
  std::filesystem::create_directory(trace_folder(folder_.path()));
  EXPECT_NAMES(missing({run_dir()}), "holds no rank_N.json");
  write(1, 3);
  EXPECT_NAMES(missing({run_dir(), "--rank", "0"}), "has no trace of rank 0; it has those of 1");
  EXPECT_NAMES(missing({run_dir(), "--step", "4"}), "has no step 4; it has 3");
  EXPECT_NAMES(misused({trace_file(folder_.path(), 1).string(), "--rank", "1"}), "is a file");
  folder_.write("trace/rank_1.json", "{}\n");
  EXPECT_NAMES(missing({run_dir()}), "is no trace of a run, or is damaged");
}

TEST_F(CommandTrace, TakesTheLowestRankAndTheLastStepUnlessToldOtherwise) {
  write(0, 2);
  write(0, 3);
  write(1, 3);
  const std::string last = output_of({run_dir()});
  EXPECT_NAMES(last, "tiny: rank 0 of 2, step 3: ");
  EXPECT_NAMES(last, "traced: 2, 3 (--step)");
  EXPECT_NAMES(last, "note: a remark");
  EXPECT_NAMES(last, "linear.of_rank_0");
  EXPECT_NAMES(output_of({run_dir(), "--step", "2"}), "step 2: ");
  EXPECT_NAMES(output_of({run_dir(), "--rank=1"}), "linear.of_rank_1");
  EXPECT_NAMES(output_of({trace_file(folder_.path(), 1).string()}), "linear.of_rank_1");
  EXPECT_NAMES(output_of({trace_folder(folder_.path()).string(), "--top=0"}), "compute stands still");
}

// As a run leaves it that is killed while it writes step 3.
TEST_F(CommandTrace, OfACutFileTheLastWholeStepIsShownUnlessToldOtherwise) {
  for (std::uint64_t step : {1, 2, 3}) write(0, step);
  const std::filesystem::path file = trace_file(folder_.path(), 0);
  const std::string whole = read_text(file);
  folder_.write("trace/rank_0.json", whole.substr(0, whole.find("linear.of_rank_0", whole.find("\"step 3\"")) + 5));
  const std::string text = output_of({run_dir()});
  EXPECT_NAMES(text, "step 2: ");
  EXPECT_NAMES(text, "linear.of_rank_0");
  EXPECT_NAMES(text, "traced: 1, 2, 3 (--step)");
  EXPECT_NAMES(text, "note: step 3 is not shown, since it may lack events (--step 3 shows it)");
  EXPECT_NAMES(text, "does not end as it should");
  EXPECT_NAMES(output_of({run_dir(), "--step", "3"}), "step 3: ");
  folder_.write("trace/rank_0.json", whole.substr(0, whole.find("linear.of_rank_0") + 5));
  EXPECT_NAMES(output_of({run_dir()}), "step 1: ") << "there is no other";
}

TEST(TraceSummaries, AddUpBusyGapsAndWhatIsExposed) {
  const TraceSummary summary = summarise(records());
  ASSERT_EQ(summary.streams.size(), 2u);
  const StreamSummary &compute = summary.streams[0], &network = summary.streams[1];
  EXPECT_EQ(compute.name, "compute");
  EXPECT_EQ(compute.busy, 40);
  EXPECT_EQ(compute.gaps, 3u) << "[0, 10), [40, 60), [70, 100)";
  EXPECT_EQ(compute.idle, 60);
  EXPECT_EQ(compute.largest, 30);
  EXPECT_EQ(network.busy, 25) << "what began before the step counts from its begin";
  EXPECT_EQ(network.exposed, 15) << "[0, 10) and [50, 55)";
  EXPECT_EQ(summary.exposed, 15);
  EXPECT_EQ(summary.launch_gaps, 45);
  ASSERT_EQ(summary.work.size(), 3u);
  EXPECT_EQ(summary.work[0].name, "linear.forward");
  EXPECT_EQ(summary.work[0].calls, 2u) << "the third is behind the step";
  EXPECT_EQ(summary.work[0].total, 30);
  EXPECT_EQ(summary.work[1].stream, "network");
  EXPECT_TRUE(summary.kernels.empty());
}

TEST(TraceSummaries, KernelsAreListedApartFromTheirOperatorsAndSideStreamsCountAsCompute) {
  TraceRecords with_kernels = records();
  with_kernels.events = {event("compute", "kernel", "gemm_128x128", 0, 30, "grouped_mlp.forward"),
                         event("compute side 1", "kernel", "gemm_64x64", 20, 50, "grouped_mlp.forward"),
                         event("compute", "copy", "memset", 50, 60, "grouped_mlp.forward")};
  const TraceSummary summary = summarise(with_kernels);
  ASSERT_EQ(summary.streams.size(), 1u);
  EXPECT_EQ(summary.streams[0].busy, 60);
  ASSERT_EQ(summary.kernels.size(), 3u);
  EXPECT_EQ(summary.kernels[0].total, 30);
  ASSERT_EQ(summary.work.size(), 1u);
  EXPECT_EQ(summary.work[0].name, "grouped_mlp.forward");
  EXPECT_EQ(summary.work[0].calls, 3u);
  const std::string text = trace_text(with_kernels, 2);
  EXPECT_NAMES(text, "gemm_64x64");
  EXPECT_NAMES(text, "... and 1 more (--top)");
}

TEST(TraceSummaries, SayWhereNothingIsOnRecord) {
  TraceRecords nothing = records();
  nothing.events.clear();
  nothing.notes = {"no device activity: no libcupti.so.13"};
  nothing.whole = false;
  const std::string text = trace_text(nothing, 5);
  EXPECT_NAMES(text, "note: no device activity");
  EXPECT_NAMES(text, "no stream has anything on record");
  EXPECT_NAMES(text, "does not end as it should");
}

}  // namespace
}  // namespace ananke
