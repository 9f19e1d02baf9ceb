// Traces of whole jobs on the host backend, ranks as threads.
#include <gtest/gtest.h>

#include <set>

#include "runtime/base/json.h"
#include "runtime/telemetry/trace_file.h"
#include "runtime/telemetry/trace_records.h"
#include "tests/equivalence/rank_runs.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

Job job_of(const std::filesystem::path& run_dir, const std::string& changes) {
  return small_job(run_dir, "training { steps: 3 } learning_rate { warmup_steps: 1 } " + changes);
}

std::set<std::string> names_of(const TraceRecords& records, const std::string& stream, const std::string& kind) {
  std::set<std::string> names;
  for (const TraceEvent& event : records.events) {
    if (event.stream == stream && event.kind == kind) names.insert(event.name);
  }
  return names;
}

// Events of one stream follow each other; spans of the host lie inside each other or apart.
void expect_nested(const TraceRecords& records) {
  std::map<std::string, std::vector<const TraceEvent*>> streams;
  for (const TraceEvent& event : records.events) streams[event.stream].push_back(&event);
  for (const auto& [stream, events] : streams) {
    for (std::size_t i = 1; stream != "host" && i < events.size(); ++i) {
      EXPECT_LE(events[i - 1]->end, events[i]->begin) << stream << " " << events[i]->name;
    }
  }
  const std::vector<const TraceEvent*>& host = streams["host"];
  std::vector<std::int64_t> open;  // ends of the spans around
  for (const TraceEvent* event : host) {
    while (!open.empty() && open.back() <= event->begin) open.pop_back();
    EXPECT_TRUE(open.empty() || event->end <= open.back()) << event->name;
    open.push_back(event->end);
  }
}

TEST(TraceSteps, WithoutThemNothingIsWritten) {
  const TemporaryFolder folder;
  train(job_of(folder.path(), ""), {{1, 1}});
  EXPECT_FALSE(std::filesystem::exists(trace_folder(folder.path())));
}

// Whether the host asks for layer 1's parameters before it issues the first operator of layer 0's forward: from then on
// the gather runs under them. That it does so at the same time is up to the machine.
bool gathers_ahead(const TraceRecords& records) {
  const TraceEvent* layer = nullptr;
  for (const TraceEvent& event : records.events) {
    if (event.stream != "host") continue;
    if (event.kind == "phase" && event.name == "layer.0 forward") layer = &event;
    const bool inside = layer != nullptr && event.begin >= layer->begin && event.end <= layer->end;
    if (inside && event.kind == "operator") return false;
    if (event.kind == "call" && event.name.starts_with("gather layer.1")) return true;
  }
  return false;
}

TEST(TraceSteps, ShowGathersAheadOfComputeAndChangeNoBit) {
  const TemporaryFolder plain, traced;
  const RunRequest request{{.shard = 2}, 2};
  const Job job = job_of(traced.path(), "telemetry { trace_steps: [2, 3] } checkpoint { every_steps: 2 }");
  const RunResult with = train(job, request), without = train(job_of(plain.path(), ""), request);
  EXPECT_EQ(with.weights, without.weights);
  for (int rank = 0; rank < 2; ++rank) {
    SCOPED_TRACE(rank);
    const auto file = trace_file(traced.path(), rank);
    Json::parse(read_text(file), file.string());
    const TraceRecords records = read_trace(file, 2);
    EXPECT_EQ(records.steps, (std::vector<std::uint64_t>{2, 3}));
    expect_nested(records);
    EXPECT_TRUE(names_of(records, "network", "collective").contains("all_gather shard"));
    EXPECT_TRUE(names_of(records, "network", "collective").contains("reduce_scatter shard"));
    for (const char* name : {"linear.forward", "attention.backward", "grouped_mlp.forward", "adamw.update"}) {
      EXPECT_TRUE(names_of(records, "compute", "operator").contains(name)) << name;
    }
    for (const char* name :
         {"layer.1 forward", "layer.0 backward", "head forward and backward", "optimizer", "checkpoint"}) {
      EXPECT_TRUE(names_of(records, "host", "phase").contains(name)) << name;
    }
    EXPECT_TRUE(names_of(records, "host", "call").contains("gather layer.1.experts"));
    EXPECT_TRUE(gathers_ahead(records)) << "layer 1 is gathered behind the work of layer 0";
    const TraceRecords last = read_trace(file, 3);
    EXPECT_TRUE(names_of(last, "host", "phase").contains("evaluation")) << "behind the last step";
  }
}

TEST(TraceSteps, AResumedRunGoesOnWithTheFileAndANewOneKeepsItAside) {
  const TemporaryFolder folder;
  const Job job = job_of(folder.path(), "telemetry { trace_steps: [1, 2, 3] }");
  RunRequest request{{1, 1}};
  request.stop_at_step = 2;
  train(job, request);
  const auto file = trace_file(folder.path(), 0);
  EXPECT_EQ(read_trace(file, {}).steps, (std::vector<std::uint64_t>{1, 2}));
  request.stop_at_step = 0;
  request.resume = true;
  const RunResult resumed = train(job, request);
  EXPECT_EQ(resumed.console.size(), 1u);
  EXPECT_NAMES(resumed.console.at(0), "note: telemetry.trace_steps: 1, 2 are before step 3, where this run goes on");
  EXPECT_EQ(read_trace(file, {}).steps, (std::vector<std::uint64_t>{1, 2, 3}));
  std::filesystem::remove_all(folder / "checkpoints");
  request.resume = false;
  train(job_of(folder.path(), "telemetry { trace_steps: [2] }"), request);
  EXPECT_EQ(read_trace(file, {}).steps, (std::vector<std::uint64_t>{2}));
  EXPECT_EQ(read_trace(folder / "trace.old/rank_0.json", {}).steps, (std::vector<std::uint64_t>{1, 2, 3}));
}

}  // namespace
}  // namespace ananke
