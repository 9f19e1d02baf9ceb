// `ananke run JOB`: resolves the job, keeps the run folder, starts the workers, says how it ended.
#include <unistd.h>

#include <boost/program_options.hpp>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "ananke/memory.pb.h"
#include "ananke/site.pb.h"
#include "launcher/command.h"
#include "launcher/console_writer.h"
#include "launcher/deadlines.h"
#include "launcher/job_environment.h"
#include "launcher/job_options.h"
#include "launcher/launch.h"
#include "launcher/output.h"
#include "launcher/print_memory.h"
#include "launcher/run_folder.h"
#include "launcher/run_plan.h"
#include "launcher/slurm/command.h"
#include "launcher/slurm/restarts.h"
#include "launcher/slurm/srun_launch.h"
#include "launcher/topology_text.h"
#include "runtime/base/log.h"
#include "runtime/base/replace_file.h"
#include "runtime/base/units.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/run_lock.h"
#include "runtime/config/site.h"
#include "runtime/engine/admit.h"
#include "runtime/engine/rank_plans.h"
#include "runtime/health/children.h"
#include "runtime/health/report.h"

namespace ananke {
namespace {

namespace po = boost::program_options;
using Path = std::filesystem::path;

// argv[0] is the path of the running file, so that tools that look at processes see which build it is.
LaunchSpec worker_spec(const Path& run_dir, const Site& site, const Job& job, const RunLock& lock, bool resume) {
  LaunchSpec spec;
  spec.program = std::filesystem::read_symlink("/proc/self/exe").string();
  spec.arguments = {spec.program, "worker",
                    "--job",      (run_dir / "job.textproto").string(),
                    "--site",     (run_dir / "site.textproto").string(),
                    "--owner",    lock.token()};
  if (resume) spec.arguments.push_back("--resume");
  spec.ranks = static_cast<int>(job.resolved().ranks());
  spec.run_dir = run_dir;
  spec.deadlines = control_deadlines(site);
  spec.deadlines.stalls = stall_limits(site, job);
  spec.grace = grace_of(site);
  spec.environment = missing_site_variables(this_environment(), site);
  spec.lost = [&lock] { return lock.lost(); };
  return spec;
}

// The same command would be refused again.
bool is_refusal(ErrorKind kind) {
  return kind == ErrorKind::usage || kind == ErrorKind::config || kind == ErrorKind::plugin;
}

void print_end(const LaunchResult& result, const std::vector<std::string>& words, const Path& run_dir) {
  const auto kind = static_cast<ErrorKind>(result.exit_code);
  if (result.exit_code == 0) return;
  if (!result.report.empty()) std::fprintf(stderr, "ananke: %s\n", result.report.c_str());
  std::fprintf(stderr, "ananke: exit code %d (%s)\n", result.exit_code, name_of(kind));
  for (const std::string& name : unfinished_checkpoints(run_dir)) {
    std::fprintf(stderr, "ananke: a checkpoint was being written and is not complete: %s\n", name.c_str());
  }
  const std::optional<std::uint64_t> newest = newest_complete_checkpoint(run_dir);
  if (is_refusal(kind) || !newest) return;
  std::string again = quote_word(program_invocation_name) + " run";
  for (const std::string& word : words) {
    if (word != "--resume" && word != "--requeue") again += " " + quote_word(word);
  }
  std::fprintf(stderr, "ananke: to go on from the newest checkpoint (step %llu): %s --resume\n",
               static_cast<unsigned long long>(*newest), again.c_str());
}

LaunchResult launch_where(const LaunchSpec& spec, const std::optional<SrunPlan>& slurm) {
  if (!slurm) return launch_local(spec);
  for (const std::string& note : slurm->notes) {
    log_info("launcher: {}", note);
    spec.console(note);
  }
  SrunWorkers workers(spec, slurm->srun);
  return launch(spec, workers);
}

// Of an allocation: whether this start may be, and what may follow it.
class SlurmStart {
 public:
  SlurmStart(const Site& site, const SrunPlan& plan, const Path& run_dir)
      : site_(site), plan_(plan), run_dir_(run_dir), begin_(newest_complete_checkpoint(run_dir).value_or(0)) {
    record_start(run_dir, {plan.job_id, plan.restarts, begin_, utc_now()});
    if (plan.restarts == 0) return;
    const std::string enough = enough_starts(read_starts(run_dir), site.slurm().batch());
    if (!enough.empty()) fail(ErrorKind::checkpoint, "not started again: {}", enough);
  }
  // After the run folder has been let go: Slurm may end this process at once.
  void requeue_after(const LaunchResult& result) const {
    const auto end = static_cast<ErrorKind>(result.exit_code);
    std::string why_not =
        why_no_restart(end, result.by_keyboard, begin_, newest_complete_checkpoint(run_dir_).value_or(0));
    if (why_not.empty()) {
      // Said before, since Slurm may end this process while it asks.
      std::fprintf(stderr, "ananke: requeueing job %s, to go on from the newest checkpoint\n", plan_.job_id.c_str());
      why_not = requeue(plan_.job_id, parse_duration(site_.slurm().command_deadline()));
    }
    if (why_not.empty()) return;
    std::fprintf(stderr, "ananke: job %s is not requeued: %s\n", plan_.job_id.c_str(), why_not.c_str());
  }

 private:
  const Site& site_;
  const SrunPlan& plan_;
  const Path run_dir_;
  const std::uint64_t begin_;
};

std::string run_topology_text(const SrunPlan& plan, const Site& site) {
  return topology_text(plan.ranks, site.name(), plan.placed_by) + "ranks\n" + rank_list(plan.ranks);
}

struct RunOptions {
  bool resume = false, requeue = false;
  int spares = 0;
  std::string site;  // as --site has it
};

// What a rank needs of the host's memory, where nodes that lack it are to be left out. The plan loads plugins, so a
// process of its own makes it.
std::uint64_t needed_host_bytes(const Job& job, const Site& site) {
  if (admission_of(job, site) != JobMemory::USE_SPARES) return 0;
  const ChildTask task{std::chrono::minutes(10), [&] {
                         const RankPlans plans = plan_ranks(job, site);
                         const MemoryReport& most = plans.on_host ? plans.largest : plans.host;
                         return std::to_string(most.host_planned() + (plans.on_host ? most.device_planned() : 0));
                       }};
  const ChildOutcome outcome = run_children({task}, 1, std::chrono::steady_clock::now() + task.deadline).front();
  if (outcome.end == ChildOutcome::End::done) return std::stoull(outcome.output);
  fail(outcome.end == ChildOutcome::End::threw ? ErrorKind::config : ErrorKind::worker_failed,
       "the job's memory cannot be planned: {}", outcome.output);
}

std::optional<SrunPlan> plan_slurm(const Job& job, const Site& site, const RunOptions& options) {
  if (site.start() != Site::SRUN) {
    if (options.spares == 0) return std::nullopt;
    fail(ErrorKind::config, "--spares {}: site '{}' has no Slurm (start: LOCAL), and so no spare nodes; leave it away",
         options.spares, site.name());
  }
  SpareRequest spares{.spares = options.spares, .site = site_from_anywhere(options.site)};
  if (options.spares > 0) spares.host_bytes = needed_host_bytes(job, site);
  return plan_srun(site, mesh_of(job.mesh()), spares);
}

void write_health(const Path& run_dir, const HealthReport& report) {
  const Path file = run_dir / "health.json";
  ReplacedFile replaced(file);
  std::ofstream stream(replaced.partial(), std::ios::trunc);
  stream << report_json(report);
  stream.close();
  if (!stream) fail(ErrorKind::resource, "cannot write {}", file.string());
  replaced.commit();
}

// With the run folder held.
LaunchResult run_in_folder(const std::vector<std::string>& words, LoadedJob& loaded, const Site& site, bool resume,
                           const std::optional<SrunPlan>& slurm, std::optional<SlurmStart>& start) {
  const Path run_dir = std::filesystem::absolute(loaded.job.run_dir());
  const int ranks = static_cast<int>(loaded.job.resolved().ranks());
  make_run_folder(run_dir);
  const RunLock lock(run_dir, [](const std::string& line) { std::fprintf(stderr, "ananke: %s\n", line.c_str()); });
  if (resume) {
    check_resumable(run_dir, loaded);
  } else {
    check_unused(run_dir);
  }
  if (slurm) start.emplace(site, *slurm, run_dir);
  if (slurm && slurm->health) write_health(run_dir, *slurm->health);
  loaded.job.mutable_resolved()->set_started(utc_now());
  write_run_files(run_dir, loaded, site);
  if (slurm) write_run_topology(run_dir, run_topology_text(*slurm, site));
  open_log(run_dir / "logs" / "launcher.log", "launcher", LogLevel::info);
  LaunchResult result;
  {
    ConsoleWriter console(STDOUT_FILENO);
    LaunchSpec spec = worker_spec(run_dir, site, loaded.job, lock, resume);
    spec.second_term_ends = !slurm;
    spec.console = [&](const std::string& line) { console.add(line); };
    for (const auto& [name, value] : spec.environment) log_info("launcher: the site sets {}={}", name, value);
    console.add(fmt::format("{}: {} ranks, run folder {}, one log per rank in {}", loaded.job.name(), ranks,
                            run_dir.string(), (run_dir / "logs").string()));
    result = launch_where(spec, slurm);
  }
  if (result.exit_code != 0) log_info("exit code {}; {}", result.exit_code, result.report);
  print_end(result, words, run_dir);
  return result;
}

int run_job(const std::vector<std::string>& words, LoadedJob& loaded, const Site& site, const RunOptions& options) {
  const std::optional<SrunPlan> slurm = plan_slurm(loaded.job, site, options);
  // Whoever has requeued the job, it was not to begin anew, unless it keeps nothing.
  const bool again = slurm && slurm->restarts > 0 && !loaded.job.checkpoint().none();
  const bool resume = options.resume || again;
  std::optional<SlurmStart> start;
  const LaunchResult result = run_in_folder(words, loaded, site, resume, slurm, start);
  if (start && options.requeue) start->requeue_after(result);
  return result.exit_code;
}

// As the job's text has it.
std::string policy_named(const std::string& name) {
  std::string text;
  for (const char c : name) text += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  JobMemory::Admission policy;
  if (!JobMemory::Admission_Parse(text, &policy)) {
    fail(ErrorKind::usage, "--admission {} is none of refuse, reduce_offload, use_spares, off", name);
  }
  return text;
}

}  // namespace

int command_run(const Arguments& arguments) {
  JobArguments job;
  RunOptions run;
  bool dry_run = false, memory = false;
  std::string admission;
  CommandOptions options(
      "run", "JOB [options]",
      "Trains what a job file (*.textproto) says: starts its workers on this machine, or where the\n"
      "site says so by srun on the nodes of the allocation that this runs in, and waits for them. INT\n"
      "or TERM stops it after a step and a checkpoint.");
  job.add_to(options);
  options.add()("resume", po::bool_switch(&run.resume),
                "go on from the newest complete checkpoint of the run folder, where there is one")(
      "requeue", po::bool_switch(&run.requeue),
      "in a batch job of Slurm: requeue it when it was stopped or has lost a worker, if there is a new checkpoint")(
      "spares", po::value(&run.spares)->value_name("K")->default_value(0),
      "so many nodes of the allocation are spare: the health of all is asked, and those that are well are used")(
      "dry-run", po::bool_switch(&dry_run),
      "print what `check` does and the plan: placement, memory, steps, where it would write and start; then leave")(
      "print-memory", po::bool_switch(&memory),
      "print what the rank that needs most takes of its device's and the host's memory, by purpose, and whether the "
      "site has it; then leave. Needs no GPU and no peers")("admission", po::value(&admission)->value_name("POLICY"),
                                                            "what becomes of a job that does not fit into the memory "
                                                            "of its nodes: refuse, reduce_offload, use_spares, or off "
                                                            "to go on anyway; default: as the job or the site says");
  if (!options.read(arguments)) return 0;
  job.complete(options);
  if (options.given("admission")) job.job.overrides.push_back("memory.admission=" + policy_named(admission));
  if (run.spares < 0) fail(ErrorKind::usage, "--spares {} is no number of nodes", run.spares);
  run.site = job.site;
  const Site site = load_site(job.site);
  LoadedJob loaded = load_checked_job(job);
  const auto said = [](int code) {
    check_output();
    return code;
  };
  if (print_instead(job, loaded)) return said(0);
  stall_limits(site, loaded.job);  // refuses before anything is made
  if (memory) return said(print_memory(loaded, site));
  print_environment_warnings(loaded.job, site);
  if (!dry_run) return run_job(arguments.words, loaded, site, run);
  print_valid(job, loaded, site);
  return said(print_run_plan(loaded, site, run.resume));
}

}  // namespace ananke
