// `ananke status JOBID|RUN_DIR`: how a job of Slurm and its run are, from wherever the run folder can be seen.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <vector>

#include "ananke/job.pb.h"
#include "launcher/command.h"
#include "launcher/command_options.h"
#include "launcher/run_folder.h"
#include "launcher/slurm/job_query.h"
#include "launcher/slurm/restarts.h"
#include "runtime/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/base/units.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/run_lock.h"
#include "runtime/config/job.h"
#include "runtime/engine/slow_rank.h"
#include "runtime/telemetry/run_records.h"

namespace ananke {
namespace {

using Path = std::filesystem::path;
constexpr std::chrono::seconds deadline{20};

void print_line(const char* title, const std::string& text) {
  std::printf("%-12s %s\n", title, printable(text).c_str());  // jobs and nodes are called as anybody likes
}

void print_job(const std::string& id, const SlurmJob& job) {
  if (!job.problem.empty()) return print_line("job", fmt::format("{}: UNKNOWN: {}", id, job.problem));
  const std::string nodes = job.field("NodeList"), code = job.field("ExitCode");
  std::string text = fmt::format("{} '{}': {}", id, job.field("JobName"), job.state());
  if (job.state() == "PENDING") text += " (" + job.field("Reason") + ")";
  if (!nodes.empty() && nodes != "(null)") text += " on " + nodes;
  text += fmt::format(", {} of {}, restart {}, exit code {}", job.field("RunTime"), job.field("TimeLimit"),
                      job.field("Restarts"), code.substr(0, code.find(':')));
  print_line("job", text);
}

// RUN_DIR/logs/slurm-77.out, as `ananke submit` has it.
std::optional<Path> run_folder_of(const SlurmJob& job) {
  const Path output = job.field("StdOut");
  if (output.parent_path().filename() != "logs") return std::nullopt;
  return output.parent_path().parent_path();
}

std::string age_of(const Path& file) {
  std::error_code unknown;
  const auto time = std::filesystem::last_write_time(file, unknown);
  if (unknown) return "at a time unknown";
  const std::chrono::duration<double> age = std::filesystem::file_time_type::clock::now() - time;
  return format_duration(std::max(age.count(), 0.0)) + " ago";
}

// Who took longest for its work in most of the last steps.
void print_slow_rank(const RunRecords& records) {
  constexpr std::size_t window = 50, enough = 5;
  std::map<std::uint32_t, std::vector<double>> slow;
  std::size_t seen = 0;
  for (auto step = records.steps.rbegin(); step != records.steps.rend() && seen < window; ++step) {
    const WorkRecord& work = step->second.work();
    if (!work.has_straggler()) continue;
    ++seen;
    if (work.straggler() >= SlowRankWatch::much) slow[work.straggler_rank()].push_back(work.straggler());
  }
  const auto most = std::ranges::max_element(slow, {}, [](const auto& one) { return one.second.size(); });
  if (most == slow.end() || most->second.size() < enough || 2 * most->second.size() < seen) return;
  auto& [rank, times] = *most;
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  std::string host;
  for (const RunEvent& event : records.events) {
    if (event.kind() == RunEvent::SLOW_RANK && event.rank() == rank && !event.host().empty()) {
      host = " on " + event.host();
    }
  }
  print_line("slow rank",
             fmt::format("{}{} takes {:.2f}x as long as the median rank for the same work, in {} of the last "
                         "{} steps",
                         rank, host, *middle, times.size(), seen));
}

void print_progress(const Path& run_dir) {
  const RunRecords records = read_run_records(run_dir);
  if (records.steps.empty()) return print_line("step", "none yet");
  const StepRecord& last = records.steps.rbegin()->second;
  std::string of;
  try {
    of = fmt::format("/{}", load_resolved_job(run_dir / "job.textproto").job.training().steps());
  } catch (
      const Error&) {  // of another version, or its plugins have changed: the number of steps is not worth a refusal
  }
  print_line("step", fmt::format("{}{}, loss {:.4f}, {} tokens/s, {}", last.step(), of, last.loss(),
                                 format_count(last.tokens_per_second()), age_of(run_dir / "steps.jsonl")));
  if (last.work().has_waiting()) {
    print_line("waiting", fmt::format("{:.0f}% of a step, the mean of all ranks", 100 * last.work().waiting()));
  }
  print_slow_rank(records);
  if (!records.events.empty()) {
    const RunEvent& event = records.events.back();
    print_line("last event",
               fmt::format("{} at step {}: {}", RunEvent::Kind_Name(event.kind()), event.step(), event.text()));
  }
}

void print_run(const Path& run_dir) {
  print_line("run folder", run_dir.string());
  if (const auto holder = holder_of_run(run_dir)) {
    const char* life = holder->life == Life::gone ? ", which is gone" : "";
    print_line("held by", fmt::format("{} since {}{}", holder->name, holder->since, life));
  } else {
    print_line("held by", "nobody");
  }
  print_progress(run_dir);
  const auto checkpoints = find_checkpoints(run_dir);
  const auto newest = std::ranges::find_if(checkpoints, &FoundCheckpoint::complete);
  print_line("checkpoint", newest == checkpoints.end() ? std::string("none")
                                                       : fmt::format("step {}, complete, {}", newest->step,
                                                                     age_of(newest->folder / "COMPLETE")));
  for (const Start& start : read_starts(run_dir)) {
    print_line("start", fmt::format("job {}, restart {}, at checkpoint {}, {}", start.job, start.restart, start.step,
                                    start.time));
  }
}

}  // namespace

int command_status(const Arguments& arguments) {
  std::string what;
  CommandOptions options("status", "JOBID|RUN_DIR",
                         "How a job of Slurm and its run are: state, nodes, last step, checkpoints, restarts.");
  options.word("JOBID|RUN_DIR", what);
  if (!options.read(arguments)) return 0;
  const bool is_number = !what.empty() && what.find_first_not_of("0123456789") == std::string::npos;
  if (is_number && !std::filesystem::exists(what)) {
    const SlurmJob job = ask_for_job(what, deadline);
    if (!job.problem.empty())
      fail(ErrorKind::data, "nothing is known of job {}: {}; give its run folder instead", what, job.problem);
    print_job(what, job);
    if (const auto run_dir = run_folder_of(job)) print_run(*run_dir);
    return 0;
  }
  const Path run_dir = std::filesystem::absolute(what);
  if (!std::filesystem::exists(run_dir / "logs")) {
    fail(ErrorKind::data, "{} is no run folder: it has no folder logs", run_dir.string());
  }
  const std::vector<Start> starts = read_starts(run_dir);
  if (!starts.empty()) print_job(starts.back().job, ask_for_job(starts.back().job, deadline));
  print_run(run_dir);
  return 0;
}

}  // namespace ananke
