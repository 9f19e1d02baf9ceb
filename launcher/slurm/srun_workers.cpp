#include "launcher/slurm/srun_workers.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

#include "launcher/slurm/command.h"
#include "runtime/base/descriptor.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/bootstrap/node_order.h"

namespace ananke {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t most_said = 4;      // lines of srun that are kept for a message
constexpr std::size_t most_line = 4096;   // of a line
constexpr milliseconds last_output{500};  // from srun's end to the end of its pipes
constexpr seconds end_deadline{5};        // for srun to end once its tasks have
constexpr seconds after_termination{3};   // and once it was told to end them

// What would set the same as an argument of ours, or hold up the step.
bool is_variable_of_srun(const std::string& variable) {
  for (const char* name :
       {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_DISTRIBUTION",
        "SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_MPI_TYPE", "SLURM_KILL_BAD_EXIT", "SLURM_WAIT",
        "SLURM_LABELIO", "SLURM_UNBUFFEREDIO", "SLURM_STDINMODE", "SLURM_STDOUTMODE", "SLURM_STDERRMODE",
        "SLURM_EXPORT_ENV", "SLURM_OPEN_MODE", "SLURM_NO_KILL", "SLURM_HOSTFILE"}) {
    if (variable.starts_with(name) && variable[std::strlen(name)] == '=') return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> srun_words(const SrunSpec& srun, const LaunchSpec& spec) {
  std::string nodes;
  for (const std::string& node : srun.layout.nodes) nodes += (nodes.empty() ? "" : ",") + node;
  std::vector<std::string> words{"srun"};
  words.insert(words.end(), srun.flags.begin(), srun.flags.end());
  const std::vector<std::string> own{
      "--job-name=ananke",
      fmt::format("--nodes={}", srun.layout.nodes.size()),
      "--nodelist=" + nodes,
      fmt::format("--ntasks={}", spec.ranks),
      fmt::format("--ntasks-per-node={}", srun.layout.ranks_per_node),
      "--distribution=block",  // a Slurm that prefers another order must not have it
      "--mpi=" + srun.mpi,
      "--export=ALL",  // a job submitted with --export=NONE would start workers that know nothing
      "--input=none",
      "--unbuffered",
      "--wait=0",              // for how long the others go on is not srun's to say
      "--kill-on-bad-exit=1",  // of a supervisor: those of workers are told
  };
  words.insert(words.end(), own.begin(), own.end());
  if (srun.layout.cpus_per_rank > 0) words.push_back(fmt::format("--cpus-per-task={}", srun.layout.cpus_per_rank));
  words.insert(words.end(), {spec.program, "supervise", spec.run_dir.string()});
  words.insert(words.end(), spec.arguments.begin() + 1, spec.arguments.end());
  return words;
}

SrunWorkers::SrunWorkers(const LaunchSpec& spec, SrunSpec srun) : spec_(spec), srun_(std::move(srun)) {
  for (int rank = 0; rank < spec.ranks; ++rank) {
    Task task;
    task.report.rank = rank;
    tasks_.push_back(std::move(task));
  }
}

void SrunWorkers::start(const Variables& variables) {
  const std::vector<std::string> words = srun_words(srun_, spec_);
  log_info("launcher: {}", quote_words(words));
  ProcessSpec process;
  process.program = find_program("srun");
  process.arguments = words;
  process.environment = changed_environment(variables);
  std::string nodes;
  for (const std::string& node : srun_.layout.nodes) nodes += (nodes.empty() ? "" : ",") + node;
  set_variable(process.environment, nodes_variable, nodes);  // by which workers know their ranks
  std::erase_if(process.environment, is_variable_of_srun);
  Pipe output(Pipe::Waits::writer), errors(Pipe::Waits::writer);
  process.output = output.write.get();
  process.errors = errors.write.get();
  output_ = std::move(output.read);
  errors_ = std::move(errors.read);
  process.death_signal = SIGTERM;  // by which srun ends its step
  process_.emplace(process);
}

std::string SrunWorkers::host(int rank) const {
  if (!at(rank).report.host.empty()) return at(rank).report.host;
  return srun_.layout.nodes.at(static_cast<std::size_t>(rank / srun_.layout.ranks_per_node));
}

void SrunWorkers::watch(std::vector<pollfd>& ready) const {
  if (output_) ready.push_back({output_.get(), POLLIN, 0});
  if (errors_) ready.push_back({errors_.get(), POLLIN, 0});
  if (process_ && process_->running()) ready.push_back({process_->descriptor(), POLLIN, 0});
}

void SrunWorkers::read(Descriptor& from, std::string& rest, void (SrunWorkers::*take)(const std::string&)) {
  std::array<char, 65536> bytes;
  // A bounded number of rounds: the control channel must be heard too.
  for (int round = 0; from && round < 16; ++round) {
    const ssize_t got = ::read(from.get(), bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return from.close();
    for (ssize_t i = 0; i < got; ++i) {
      const char byte = bytes[static_cast<std::size_t>(i)];
      if (byte != '\n') {
        if (rest.size() < most_line) rest += byte;
        continue;
      }
      (this->*take)(rest);
      rest.clear();
    }
  }
}

void SrunWorkers::take_output_line(const std::string& line) {
  const auto report = parse_report(line);
  if (!report || report->rank >= spec_.ranks) {
    log_warning("launcher: srun's output has '{}'", line);
    return;
  }
  Task& task = tasks_[static_cast<std::size_t>(report->rank)];
  task.report = *report;
  if (step_.empty()) step_ = report->step;
  if (!report->end || task.told) return;
  task.told = true;
  news_.push_back({.kind = News::Kind::ended,
                   .rank = report->rank,
                   .status = *report->end,
                   .when = Clock::now(),
                   .out_of_memory = report->out_of_memory});
}

void SrunWorkers::take_error_line(const std::string& line) {
  if (line.empty()) return;
  log_info("launcher: {}", line);
  said_.push_back(line);
  if (said_.size() > most_said) said_.pop_front();
}

std::string SrunWorkers::end_text() const {
  std::string text = end_->signal != 0 ? fmt::format("srun was killed by {}", signal_name(end_->signal))
                                       : fmt::format("srun ended with exit code {}", end_->code);
  for (std::size_t i = 0; i < said_.size(); ++i) text += (i == 0 ? ": " : " | ") + said_[i];
  return text;
}

void SrunWorkers::lose_the_rest() {
  for (Task& task : tasks_) {
    if (std::exchange(task.told, true)) continue;
    news_.push_back({.kind = News::Kind::lost, .rank = task.report.rank, .when = ended_, .message = end_text()});
  }
}

std::vector<Workers::News> SrunWorkers::take_news() {
  read(output_, output_rest_, &SrunWorkers::take_output_line);
  read(errors_, errors_rest_, &SrunWorkers::take_error_line);
  if (process_ && !end_ && (end_ = process_->reap())) ended_ = Clock::now();
  const bool all_said = !output_ && !errors_;
  if (end_ && (all_said || Clock::now() - ended_ > last_output)) lose_the_rest();
  return std::exchange(news_, {});
}

void SrunWorkers::kill() {
  killed_ = true;
  if (process_) process_->signal(SIGTERM);
}

SrunWorkers::~SrunWorkers() {
  if (!process_) return;
  const auto wait = [&](milliseconds time) {
    const auto until = Clock::now() + time;
    while (process_->running() && Clock::now() < until) {
      take_news();  // srun may wait for its pipes to be read
      std::this_thread::sleep_for(milliseconds(10));
    }
    return !process_->running();
  };
  if (!killed_ && wait(end_deadline)) return;
  kill();
  if (wait(after_termination)) return;
  // A node that does not answer keeps srun waiting; the controller ends the step there when it can.
  log_warning("launcher: srun does not end; killing it{}", step_.empty() ? "" : " and step " + step_);
  if (step_.empty()) return;
  try {
    run_command({"scancel", "--signal=KILL", step_}, std::min(srun_.command_deadline, milliseconds(5'000)));
  } catch (const std::exception& error) {
    log_warning("launcher: {}", error.what());
  }
}

}  // namespace ananke
