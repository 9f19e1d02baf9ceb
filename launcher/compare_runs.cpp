#include "launcher/compare_runs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "runtime/base/error.h"
#include "runtime/checkpoint/run_lock.h"
#include "runtime/config/recorded_job.h"
#include "runtime/model/parameter_table.h"
#include "runtime/telemetry/run_records.h"

namespace ananke {
namespace {

using Path = std::filesystem::path;

struct Run {
  RunSummary summary;
  std::optional<RecordedJob> job;
  RunRecords records;
  std::vector<std::string> notes;
};

std::string state_of(const RunRecords& records, const Path& run_dir) {
  std::optional<RunEvent::Kind> last;
  for (const RunEvent& event : records.events) {
    if (event.kind() != RunEvent::CHECKPOINT && event.kind() != RunEvent::SLOW_RANK) last = event.kind();
  }
  if (last == RunEvent::FINISHED) return "finished";
  if (last == RunEvent::STOP_REQUESTED) return "stopped on request";
  if (last == RunEvent::FAILED) return "failed";
  const std::optional<RunHolder> holder = holder_of_run(run_dir);
  if (holder && holder->life == Life::alive) return "running";
  if (holder && holder->life == Life::unknown) return "held by " + holder->name;
  return records.steps.empty() ? "not started" : "ended early";
}

// The steps of each start, without those that warm it up.
std::vector<const StepRecord*> measured_steps(const RunRecords& records) {
  constexpr std::size_t warm_up = 5;
  std::vector<const StepRecord*> measured, segment;
  const auto end_segment = [&] {
    const std::size_t left_out = std::min(warm_up, segment.size() / 2);
    measured.insert(measured.end(), segment.begin() + static_cast<std::ptrdiff_t>(left_out), segment.end());
    segment.clear();
  };
  for (const auto& [number, step] : records.steps) {
    if (records.first_steps.contains(number)) end_segment();
    segment.push_back(&step);
  }
  end_segment();
  return measured;
}

// Of an even number the mean of the two in the middle. `values` is not empty.
double median(std::vector<double> values) {
  const std::size_t middle = values.size() / 2;
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(middle));
  const double upper = values[middle];
  if (values.size() % 2 == 1) return upper;
  return (*std::max_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle)) + upper) / 2;
}

template <class Value>
double median_of(const std::vector<const StepRecord*>& steps, Value value) {
  std::vector<double> values;
  for (const StepRecord* step : steps) values.push_back(value(*step));
  return median(std::move(values));
}

// What a step moves, by resource, axis and direction: "network shard gather".
std::map<std::string, double> traffic_of(const StepRecord& step) {
  std::map<std::string, double> bytes;
  for (const TrafficRecord& one : step.traffic()) {
    bytes[one.resource() + " " + one.axis() + " " + one.direction()] += static_cast<double>(one.bytes());
  }
  return bytes;
}

void add_resource(const std::string& name, double bytes, RunSummary* summary) {
  ResourceUse* use = summary->add_resources();
  use->set_name(name);
  use->set_bytes(static_cast<std::uint64_t>(bytes));
}

void add_resources(const RunRecords& records, const std::vector<const StepRecord*>& measured, RunSummary* summary) {
  std::uint64_t most = 0;
  for (const auto& [number, step] : records.steps) most = std::max(most, step.memory_bytes());
  add_resource("memory", static_cast<double>(most), summary);
  std::map<std::string, std::vector<double>> traffic;  // of the measured steps
  for (const StepRecord* step : measured) {
    for (const auto& [name, bytes] : traffic_of(*step)) traffic[name].push_back(bytes);
  }
  for (auto& [name, bytes] : traffic) {
    bytes.resize(measured.size());  // a step without it has moved nothing
    add_resource(name, median(std::move(bytes)), summary);
  }
}

void summarise_steps(const RunRecords& records, RunSummary* summary) {
  if (records.steps.empty()) return;
  const StepRecord& last = records.steps.rbegin()->second;
  summary->set_last_step(last.step());
  summary->set_total_valid_tokens(last.total_valid_tokens());
  const std::vector<const StepRecord*> measured = measured_steps(records);
  summary->set_measured_steps(measured.size());
  summary->set_tokens_per_second(median_of(measured, [](const StepRecord& step) { return step.tokens_per_second(); }));
  summary->set_seconds_per_step(median_of(measured, [](const StepRecord& step) { return step.seconds(); }));
  add_resources(records, measured, summary);
}

void summarise_job(const Job& job, RunSummary* summary) {
  summary->set_job(job.name());
  summary->set_steps(job.training().steps());
  summary->set_ranks(job.resolved().ranks());
  const bool complete = job.model().has_head_dim() && job.model().has_num_key_value_heads();  // else of another version
  if (complete) summary->set_parameters(static_cast<std::uint64_t>(ParameterTable(job.model()).total()));
}

void note_records(const RunRecords& records, const std::string& name, std::vector<std::string>* notes) {
  if (!records.found)
    notes->push_back(name + " has no steps.jsonl: its workers have not started, or could not write it");
  if (records.torn) notes->push_back(name + ": the last line of steps.jsonl is not whole yet; it is left out");
  if (records.unreadable > 0) {
    notes->push_back(fmt::format("{}: {} lines of steps.jsonl are no records and left out, the first is line {}", name,
                                 records.unreadable, records.first_unreadable));
  }
}

Run read_run(const std::string& name, const Path& run_dir) {
  std::error_code ignored;
  if (!std::filesystem::exists(run_dir, ignored)) {
    fail(ErrorKind::data, "there is no folder {}; name a run's folder", run_dir.string());
  }
  if (!std::filesystem::is_directory(run_dir, ignored)) {
    fail(ErrorKind::data, "{} is a file; name the run's folder{}", run_dir.string(),
         run_dir.has_parent_path() ? ", perhaps " + run_dir.parent_path().string() : "");
  }
  Run run;
  run.records = read_run_records(run_dir);
  run.summary.set_run_dir(run_dir.string());
  try {
    run.job = read_recorded_job(run_dir / "job.textproto");
    for (const std::string& what : run.job->not_read) run.notes.push_back(name + ": " + what);
    summarise_job(run.job->job, &run.summary);
  } catch (const Error& error) {
    if (!run.records.found) {
      fail(ErrorKind::data, "{} is no run's folder: it has no steps.jsonl, and {}", run_dir.string(), error.what());
    }
    run.notes.push_back(fmt::format("{}: the configuration cannot be compared: {}", name, error.what()));
  }
  note_records(run.records, name, &run.notes);
  summarise_steps(run.records, &run.summary);
  run.summary.set_state(state_of(run.records, run_dir));
  return run;
}

// What every run has of its own, or the summary shows.
bool is_compared(const std::string& path) {
  if (path == "name" || path == "run_dir" || path == "resolved.started" || path == "resolved.source" ||
      path == "resolved.ranks") {
    return false;
  }
  return !path.starts_with("resolved.plugins") || path.ends_with(".hash");
}

void compare_configurations(const Run& a, const Run& b, RunComparison* comparison) {
  if (!a.job || !b.job) return;
  std::set<std::string> paths;
  for (const auto* fields : {&a.job->fields, &b.job->fields}) {
    for (const FieldText& field : *fields) {
      if (is_compared(field.path)) paths.insert(field.path);
    }
  }
  comparison->set_configuration_fields(paths.size());
  for (const FieldDifference& difference : differences(a.job->fields, b.job->fields)) {
    if (!is_compared(difference.path)) continue;
    ConfigurationDifference* to = comparison->add_configuration();
    to->set_path(difference.path);
    if (difference.a) to->set_a(*difference.a);
    if (difference.b) to->set_b(*difference.b);
  }
}

bool same_bits(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// One number and none, or two infinities, are as far apart as can be.
double distance(double difference) {
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::abs(difference);
}

void compare_losses(const RunRecords& a, const RunRecords& b, RunComparison* comparison) {
  std::map<std::uint64_t, LossPoint> points;
  for (const auto& [step, record] : a.steps) points[step].set_a(record.loss());
  for (const auto& [step, record] : b.steps) points[step].set_b(record.loss());
  std::uint64_t common = 0, equal = 0;
  for (auto& [step, point] : points) {
    point.set_step(step);
    *comparison->add_loss() = point;
    if (!point.has_a() || !point.has_b()) continue;
    ++common;
    LossDifference difference;
    difference.set_step(step);
    const bool same = same_bits(point.a(), point.b());
    difference.set_value(same ? 0 : point.b() - point.a());
    equal += same ? 1 : 0;
    if (!same && !comparison->has_first_difference()) *comparison->mutable_first_difference() = difference;
    if (common == 1 || distance(difference.value()) > distance(comparison->largest_difference().value())) {
      *comparison->mutable_largest_difference() = difference;
    }
    *comparison->mutable_final_difference() = difference;
  }
  comparison->set_common_steps(common);
  comparison->set_equal_steps(equal);
}

void compare_evaluations(const RunRecords& a, const RunRecords& b, RunComparison* comparison) {
  std::vector<std::string> sets = a.held_out;
  for (const std::string& set : b.held_out) {
    if (std::ranges::find(sets, set) == sets.end()) sets.push_back(set);
  }
  for (const std::string& set : sets) {
    std::map<std::uint64_t, EvaluationPoint> points;
    const auto of = [&](const RunRecords& records) {
      const auto found = records.evaluations.find(set);
      return found == records.evaluations.end() ? std::map<std::uint64_t, EvaluationRecord>() : found->second;
    };
    for (const auto& [step, record] : of(a)) {
      points[step].set_a(record.loss());
      if (record.has_bits_per_byte()) points[step].set_a_bits_per_byte(record.bits_per_byte());
    }
    for (const auto& [step, record] : of(b)) {
      points[step].set_b(record.loss());
      if (record.has_bits_per_byte()) points[step].set_b_bits_per_byte(record.bits_per_byte());
    }
    for (auto& [step, point] : points) {
      point.set_held_out(set);
      point.set_step(step);
      *comparison->add_evaluations() = point;
    }
  }
}

// Where equal steps are not equal training, or equal losses not equal quality.
void note_differences(const Job& a, const Job& b, const RunComparison& comparison, std::vector<std::string>* notes) {
  const auto differs = [&](const std::string& prefix) {
    return std::ranges::any_of(comparison.configuration(),
                               [&](const auto& one) { return one.path().starts_with(prefix); });
  };
  if (a.model().vocab_size() != b.model().vocab_size()) {
    notes->push_back(fmt::format(
        "the vocabularies differ ({} and {} tokens): losses per token cannot be compared, bits per byte can",
        a.model().vocab_size(), b.model().vocab_size()));
  } else if (differs("model.")) {
    notes->push_back("the models differ: their losses tell which model is better, not which training");
  }
  if (differs("data.") || differs("training.seed"))
    notes->push_back("the runs see other documents, or in another order");
  const auto tokens = [](const Job& job) {
    return std::uint64_t{job.training().rows_per_step()} * job.training().sequence_length();
  };
  if (tokens(a) != tokens(b)) {
    notes->push_back(fmt::format("a step is {} tokens in A and {} in B: at equal steps they have not seen equally much",
                                 tokens(a), tokens(b)));
  }
}

}  // namespace

RunComparison compare_runs(const Path& path_a, const Path& path_b) {
  const Run a = read_run("A", path_a), b = read_run("B", path_b);
  RunComparison comparison;
  *comparison.mutable_a() = a.summary;
  *comparison.mutable_b() = b.summary;
  compare_configurations(a, b, &comparison);
  compare_losses(a.records, b.records, &comparison);
  compare_evaluations(a.records, b.records, &comparison);
  std::vector<std::string> notes = a.notes;
  notes.insert(notes.end(), b.notes.begin(), b.notes.end());
  if (a.job && b.job) note_differences(a.job->job, b.job->job, comparison, &notes);
  std::error_code ignored;
  if (std::filesystem::equivalent(path_a, path_b, ignored)) notes.push_back("A and B are the same folder");
  for (std::string& note : notes) comparison.add_notes(std::move(note));
  return comparison;
}

}  // namespace ananke
