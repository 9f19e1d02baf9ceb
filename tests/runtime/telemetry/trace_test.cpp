#include "runtime/telemetry/trace.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <thread>

#include "runtime/base/json.h"
#include "runtime/telemetry/trace_file.h"
#include "runtime/telemetry/trace_records.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

using std::chrono::microseconds;

// Makes this thread record into it while it lives.
class Recording {
 public:
  Recording() { Trace::make_current(trace.get()); }
  ~Recording() { Trace::make_current(nullptr); }
  const std::shared_ptr<Trace> trace = std::make_shared<Trace>();
};

// A step in which layer 1's gather runs under a product, on clocks of its own.
std::shared_ptr<Trace> traced_step() {
  const Recording recording;
  const auto begin = TraceClock::now();
  {
    const TraceSpan step(TraceKind::step, "step");
    const TraceSpan phase(TraceKind::phase, [] { return TraceText{"layer.0 forward", {{"item", 1}}}; });
    {
      const TraceSpan call(TraceKind::call, "gather layer.1");
      const TraceSpan gather(TraceKind::collective, [] { return TraceText{"all_gather shard", {{"bytes", 64}}}; });
      TraceLaunch::current().ran("network", TraceKind::launched, begin, begin + microseconds(30));
    }
    const TraceSpan product(TraceKind::operation, "linear.forward");
    const TraceLaunch launch = TraceLaunch::current();
    launch.ran("compute", TraceKind::wait, begin, begin + microseconds(10));
    launch.ran("compute", TraceKind::launched, begin + microseconds(10), begin + microseconds(20));
    std::this_thread::sleep_for(microseconds(50));
  }
  return recording.trace;
}

class TraceFiles : public testing::Test {
 protected:
  TraceFile::Setup setup(std::optional<std::uint64_t> resumed_after = {}) const {
    return {folder_.path(), "tiny \"job\"", 3, 4, resumed_after};
  }
  std::filesystem::path file() const { return trace_file(folder_.path(), 3); }
  std::vector<std::uint64_t> steps() const { return read_trace(file(), {}).steps; }
  TemporaryFolder folder_;
};

TEST(TraceTest, RefusesToCloseWhatIsNotOpen) { EXPECT_ERROR(Trace().close(), ErrorKind::internal, "none is open"); }

TEST(TraceTest, RecordsNothingAndAsksNothingWhereNoStepIsTraced) {
  bool asked = false;
  {
    const TraceSpan span(TraceKind::call, [&] {
      asked = true;
      return TraceText{"never"};
    });
    EXPECT_FALSE(TraceLaunch::current());
  }
  EXPECT_FALSE(asked);
  EXPECT_EQ(Trace::current(), nullptr);
}

TEST(TraceTest, SpansNestAndTasksAreNamedByWhatLaunchedThem) {
  const std::shared_ptr<Trace> trace = traced_step();
  const std::vector<TraceSpanRecord>& spans = trace->spans();
  ASSERT_EQ(spans.size(), 5u);
  for (const TraceSpanRecord& span : spans) {
    EXPECT_LE(span.begin, span.end);
    if (span.parent == 0) continue;
    EXPECT_GE(span.begin, spans[span.parent - 1].begin);
    EXPECT_LE(span.end, spans[span.parent - 1].end);
  }
  EXPECT_EQ(spans[3].parent, 3u);
  EXPECT_EQ(spans[4].parent, 2u);
  const std::vector<TraceTask> tasks = trace->tasks();
  ASSERT_EQ(tasks.size(), 3u);
  const TraceTask gather = trace->resolved(tasks[0]), wait = trace->resolved(tasks[1]),
                  product = trace->resolved(tasks[2]);
  EXPECT_EQ(gather.text.name, "all_gather shard");
  EXPECT_EQ(gather.kind, TraceKind::collective);
  std::string arguments;
  for (const TraceArgument& one : gather.text.arguments) arguments += fmt::format("{}={} ", one.name, one.text);
  EXPECT_EQ(arguments, "bytes=64 in=gather layer.1 phase=layer.0 forward ");
  EXPECT_EQ(wait.text.name, "wait");
  EXPECT_EQ(wait.kind, TraceKind::wait);
  EXPECT_EQ(product.text.name, "linear.forward");
  EXPECT_EQ(product.kind, TraceKind::operation);
}

TEST(TraceTest, FindsTheSpanOfATime) {
  const std::shared_ptr<Trace> trace = traced_step();
  const std::vector<TraceSpanRecord>& spans = trace->spans();
  EXPECT_EQ(trace->span_at(spans[0].begin - microseconds(1)), 0u);
  EXPECT_EQ(trace->span_at(spans[0].end + microseconds(1)), 0u);
  EXPECT_EQ(trace->span_at(spans[3].begin), 4u);
  EXPECT_EQ(trace->span_at(spans[4].begin + microseconds(10)), 5u);
}

TEST(TraceTest, AKernelKeepsItsNameAndSaysItsOperator) {
  const std::shared_ptr<Trace> trace = traced_step();
  TraceTask kernel{"compute", TraceKind::kernel, {"gemm_kernel", {{"grid", "8 x 1 x 1"}}}};
  kernel.launch = 4;
  const TraceTask resolved = trace->resolved(kernel);
  EXPECT_EQ(resolved.text.name, "gemm_kernel");
  ASSERT_EQ(resolved.text.arguments.size(), 5u);
  EXPECT_STREQ(resolved.text.arguments[1].name, "operator");
  EXPECT_EQ(resolved.text.arguments[1].text, "all_gather shard");
  kernel.launch = 0;
  EXPECT_EQ(trace->resolved(kernel).text.arguments.size(), 1u) << "not known what launched it";
}

TEST_F(TraceFiles, ReadingRefusesWhatIsNoTraceOfARun) {
  EXPECT_ERROR(read_trace(file(), {}), ErrorKind::data, "cannot read", "rank_3.json");
  const auto refused = [&](const std::string& text) {
    folder_.write("trace/rank_3.json", text);
    return refusal(ErrorKind::data, [&] { read_trace(file(), {}); });
  };
  EXPECT_NAMES(refused(""), "does not begin as one");
  EXPECT_NAMES(refused("[\n]\n"), "not valid JSON at line 1");
  EXPECT_NAMES(refused("{\"traceEvents\":[\n]}\n"), "another program wrote it");
  EXPECT_NAMES(refused("{\"otherData\":{\"program\":\"ananke\",\"rank\":0},\"traceEvents\":[\n]}\n"), "no ranks");
  const std::string begin =
      "{\"otherData\":{\"program\":\"ananke\",\"rank\":0,\"ranks\":1,\"origin\":0},\"traceEvents\":[\n";
  EXPECT_NAMES(refused(begin + "]}\n"), "has no step");
  EXPECT_NAMES(refused(begin + "{\"ph\":,\n]}\n"), "line 2");
  EXPECT_NAMES(refused(begin + "]}\n{}\n"), "text follows its end");
  EXPECT_NAMES(refused(begin + "{\"ph\":\"X\",\"cat\":\"step\",\"args\":{\"step\":3}}\n]}\n"), "has no time");
}

TEST_F(TraceFiles, AreWholeJsonAfterEveryStep) {
  TraceFile written(setup());
  for (std::uint64_t step = 3; step < 6; ++step) {
    Json::parse(read_text(file()), "trace");
    written.write(step, *traced_step());
  }
  const Json whole = Json::parse(read_text(file()), "trace");
  const Json* events = whole.find("traceEvents");
  ASSERT_NE(events, nullptr);
  std::set<std::string> named;
  for (const Json& event : events->items()) {
    for (const char* key : {"ph", "pid", "name", "args"}) EXPECT_NE(event.find(key), nullptr) << event.brief();
    EXPECT_EQ(event.find("pid")->as_unsigned(), 4u);
    if (event.find("name")->text() == "thread_name") named.insert(event.find("args")->find("name")->text());
  }
  EXPECT_EQ(named, (std::set<std::string>{"host", "compute", "network", "nvlink", "host_to_device", "device_to_host"}));
  const TraceRecords last = read_trace(file(), {}), first = read_trace(file(), 3);
  EXPECT_EQ(last.job, "tiny \"job\"");
  EXPECT_EQ(last.rank, 3);
  EXPECT_EQ(last.ranks, 4);
  EXPECT_EQ(last.steps, (std::vector<std::uint64_t>{3, 4, 5}));
  EXPECT_EQ(last.step, 5u);
  EXPECT_TRUE(last.whole);
  EXPECT_EQ(first.step, 3u);
  EXPECT_LT(first.begin, last.begin);
  EXPECT_EQ(first.events.size(), 7u);
  EXPECT_GT(last.end - last.begin, 50'000);
  EXPECT_ERROR(read_trace(file(), 7), ErrorKind::data, "has no step 7; it has 3, 4, 5");
}

TEST_F(TraceFiles, KeepNotesOfWhatIsMissing) {
  const std::shared_ptr<Trace> trace = traced_step();
  trace->note("no device activity: libcupti.so.13 was not found");
  TraceFile(setup()).write(2, *trace);
  EXPECT_EQ(read_trace(file(), {}).notes,
            (std::vector<std::string>{"no device activity: libcupti.so.13 was not found"}));
}

TEST_F(TraceFiles, AStepThatAnErrorEndedIsWrittenAsFarAsItCame) {
  const Recording recording;
  recording.trace->open(TraceKind::step, {"step 1"});
  recording.trace->open(TraceKind::phase, {"optimizer"});
  TraceFile(setup()).write(1, *recording.trace);
  const TraceRecords records = read_trace(file(), {});
  EXPECT_EQ(records.events.size(), 1u);
  EXPECT_GT(records.end, records.begin);
}

TEST_F(TraceFiles, AResumedRunKeepsTheStepsBeforeAndARestartNone) {
  {
    TraceFile written(setup());
    for (std::uint64_t step = 2; step < 5; ++step) written.write(step, *traced_step());
  }
  const auto whole = read_text(file());
  folder_.write("trace/rank_3.json", whole.substr(0, whole.size() - 20));  // killed while it wrote
  EXPECT_FALSE(read_trace(file(), 2).whole);
  TraceFile(setup(3)).write(4, *traced_step());
  EXPECT_EQ(steps(), (std::vector<std::uint64_t>{2, 3, 4}));
  EXPECT_EQ(read_trace(file(), 4).events.size(), 7u);
  Json::parse(read_text(file()), "trace");
  TraceFile(setup(1)).write(2, *traced_step());
  EXPECT_EQ(steps(), (std::vector<std::uint64_t>{2}));
  TraceFile(setup()).write(9, *traced_step());
  EXPECT_EQ(steps(), (std::vector<std::uint64_t>{9}));
  folder_.write("trace/rank_3.json", "something else\n");
  EXPECT_ERROR(TraceFile{setup(1)}, ErrorKind::data, "is no trace of a run");
}

TEST_F(TraceFiles, StreamsOfTheDeviceKeepTheirTracksWhenTheRunGoesOn) {
  const auto step_with = [](const std::string& stream) {
    const std::shared_ptr<Trace> trace = traced_step();
    trace->add({stream, TraceKind::kernel, {"kernel"}, TraceClock::now(), TraceClock::now()});
    return trace;
  };
  TraceFile(setup()).write(1, *step_with("compute side 1"));
  TraceFile(setup(1)).write(2, *step_with("stream 17"));
  TraceFile(setup(2)).write(3, *step_with("compute side 1"));
  const auto has = [&](std::uint64_t step, const std::string& stream) {
    const TraceRecords records = read_trace(file(), step);
    return std::ranges::count(records.events, stream, &TraceEvent::stream);
  };
  EXPECT_EQ(has(1, "compute side 1"), 1);
  EXPECT_EQ(has(2, "compute side 1"), 0);
  EXPECT_EQ(has(2, "stream 17"), 1);
  EXPECT_EQ(has(3, "compute side 1"), 1);
}

TEST_F(TraceFiles, AStepThatCannotBeWrittenLeavesTheFileAsItWas) {
  TraceFile written(setup());
  written.write(2, *traced_step());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit tight{std::filesystem::file_size(file()) + 100, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  EXPECT_ERROR(written.write(3, *traced_step()), ErrorKind::resource, "cannot write", "rank_3.json: File too large");
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  Json::parse(read_text(file()), "trace");
  written.write(4, *traced_step());
  EXPECT_EQ(steps(), (std::vector<std::uint64_t>{2, 4}));
}

}  // namespace
}  // namespace ananke
