#include "launcher/slurm/restarts.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "ananke/site.pb.h"
#include "launcher/slurm/command.h"
#include "launcher/slurm/job_query.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace ananke {
namespace {

std::filesystem::path file_of(const std::filesystem::path& run_dir) { return run_dir / "restarts.jsonl"; }

bool read_line(const std::string& line, Start& start) {
  try {
    const Json values = Json::parse(line, "restarts.jsonl");
    const Json *job = values.find("job"), *restart = values.find("restart"), *step = values.find("step"),
               *time = values.find("time");
    if (!job || !restart || !step || !time) return false;
    const auto number = restart->as_unsigned(), done = step->as_unsigned();
    if (!number || !done) return false;
    start = {job->text(), static_cast<int>(*number), *done, time->text()};
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::vector<Start> read_starts(const std::filesystem::path& run_dir) {
  std::vector<Start> starts;
  std::ifstream file(file_of(run_dir));
  for (std::string line; std::getline(file, line);) {
    Start start;
    if (read_line(line, start)) starts.push_back(std::move(start));
  }
  return starts;
}

void record_start(const std::filesystem::path& run_dir, const Start& start) {
  errno = 0;
  std::ofstream file(file_of(run_dir), std::ios::app);
  file << fmt::format("{{\"job\":\"{}\",\"restart\":{},\"step\":{},\"time\":\"{}\"}}\n", start.job, start.restart,
                      start.step, start.time);
  file.close();
  if (!file) {
    fail(ErrorKind::resource, "cannot write {}: {}; check that the run folder can be written and has room",
         file_of(run_dir).string(), std::strerror(errno));
  }
}

std::string enough_starts(const std::vector<Start>& starts, const Batch& limits) {
  if (starts.empty()) return "";
  const Start& now = starts.back();
  std::uint32_t alike = 0, of_job = 0;
  bool same = true;
  for (auto one = starts.rbegin() + 1; one != starts.rend() && one->job == now.job; ++one) {
    ++of_job;
    same = same && one->step == now.step;
    alike += same ? 1 : 0;
  }
  if (alike > limits.restarts_without_progress()) {
    return fmt::format(
        "job {} was started {} times at checkpoint {} and made no further one; {} such restarts are allowed "
        "(slurm.batch.restarts_without_progress of the site): look at the logs of the runs before",
        now.job, alike, now.step, limits.restarts_without_progress());
  }
  if (of_job > limits.restarts()) {
    return fmt::format("job {} was restarted {} times, and {} are allowed (slurm.batch.restarts of the site)", now.job,
                       of_job, limits.restarts());
  }
  return "";
}

std::string why_no_restart(ErrorKind end, bool by_keyboard, std::uint64_t begin, std::uint64_t now) {
  if (static_cast<int>(end) == 0) return "it has finished";
  if (end != ErrorKind::interrupted && end != ErrorKind::worker_failed && end != ErrorKind::stalled) {
    return "it would end the same way again";
  }
  if (by_keyboard) return "it was stopped from a terminal";
  if (now <= begin) return fmt::format("there is no new checkpoint since its start at step {}", begin);
  return "";
}

std::string requeue(const std::string& job, std::chrono::milliseconds deadline) {
  const SlurmJob shown = ask_for_job(job, deadline);
  if (!shown.problem.empty()) return shown.problem;
  // One that is being cancelled stays so.
  const std::string state = shown.state();
  if (state != "RUNNING") return fmt::format("Slurm says that it is {}", state.empty() ? "in no state" : state);
  const std::vector<std::string> words{"scontrol", "requeue", job};
  const CommandOutput done = run_command(words, deadline);
  return done.late || done.code != 0 ? describe_failure(words, done, deadline) : "";
}

}  // namespace ananke
