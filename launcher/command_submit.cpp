// `ananke submit JOB`: validates the job, renders the site's batch script, and gives it to sbatch.
#include <unistd.h>

#include <boost/program_options.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "ananke/site.pb.h"
#include "launcher/command.h"
#include "launcher/deadlines.h"
#include "launcher/job_environment.h"
#include "launcher/job_options.h"
#include "launcher/run_folder.h"
#include "launcher/run_plan.h"
#include "launcher/slurm/batch_script.h"
#include "launcher/slurm/command.h"
#include "runtime/base/error.h"
#include "runtime/base/read_file.h"
#include "runtime/base/replace_file.h"
#include "runtime/base/units.h"
#include "runtime/config/site.h"
#include "runtime/telemetry/run_records.h"

namespace ananke {
namespace {

namespace po = boost::program_options;
using Path = std::filesystem::path;
using std::chrono::seconds;

struct SubmitArguments {
  JobArguments job;
  int nodes = 0, spares = 0, chain = 1;
  std::string time;
  bool resume = false, no_requeue = false, dry_run = false;
};

// Seconds that a last step and a checkpoint have taken in this folder; 0 where there was none.
double measured_seconds(const Path& run_dir) {
  const RunRecords records = read_run_records(run_dir);
  double save = 0, step = 0;
  for (const RunEvent& event : records.events) {
    if (event.kind() != RunEvent::CHECKPOINT) continue;
    double seconds = event.seconds();
    // Records of older versions have it in the text alone.
    if (!event.has_seconds() && std::sscanf(event.text().c_str(), "written in %lf s", &seconds) != 1) continue;
    save = std::max(save, seconds);
  }
  for (const auto& [number, record] : records.steps) step = std::max(step, record.seconds());
  return save + step;
}

// Twice as long as was ever needed, and never less than the site says.
seconds lead_time(const Batch& batch, const Path& run_dir, seconds limit) {
  const auto stated = std::chrono::ceil<seconds>(parse_duration(batch.lead_time()));
  const double measured = measured_seconds(run_dir);
  const seconds lead = std::max(stated, seconds(static_cast<long>(2 * measured) + 1));
  if (lead > stated) {
    std::printf("note: a step and a checkpoint took %s here, so the signal comes %s before the end, not %s\n",
                format_duration(measured).c_str(), format_duration(static_cast<double>(lead.count())).c_str(),
                batch.lead_time().c_str());
  }
  if (2 * lead > limit) {
    fail(ErrorKind::config,
         "the signal to stop would come {} before the end of {}: nothing would be left to train; ask for a longer time "
         "(--time) or shorten slurm.batch.lead_time",
         format_duration(static_cast<double>(lead.count())), format_duration(static_cast<double>(limit.count())));
  }
  return lead;
}

int ranks_per_node(const Site& site, int ranks, int nodes) {
  const int wanted = ranks_wanted_on_node(site, ranks);
  if (ranks % nodes != 0) {
    fail(ErrorKind::config, "{} ranks do not spread evenly over {} nodes; change --nodes or the mesh", ranks, nodes);
  }
  if (wanted > 0 && ranks / nodes != wanted) {
    const std::string way_out = ranks % wanted == 0 ? fmt::format("give --nodes {}", ranks / wanted)
                                                    : "change the mesh, so that its ranks are a multiple of that";
    fail(ErrorKind::config,
         "{} ranks on {} nodes are {} a node, and a node of site '{}' takes {} (slurm.ranks_per_node, hardware.gpus): "
         "{}",
         ranks, nodes, ranks / nodes, site.name(), wanted, way_out);
  }
  return ranks / nodes;
}

// What `ananke run` is to be called with on the first node.
std::vector<std::string> run_command_of(const SubmitArguments& arguments, bool requeue, const Path& run_dir) {
  std::vector<std::string> words{std::filesystem::read_symlink("/proc/self/exe").string(), "run",
                                 std::filesystem::absolute(arguments.job.job.file).string(), "--site"};
  words.push_back(site_from_anywhere(arguments.job.site));
  if (arguments.job.job.ranks > 0) words.insert(words.end(), {"--ranks", std::to_string(arguments.job.job.ranks)});
  for (const std::string& one : arguments.job.job.overrides) {
    if (!one.starts_with("run_dir=")) words.insert(words.end(), {"--set", one});
  }
  words.insert(words.end(), {"--run-dir", run_dir.string()});
  if (arguments.spares > 0) words.insert(words.end(), {"--spares", std::to_string(arguments.spares)});
  if (arguments.resume) words.push_back("--resume");
  if (requeue) words.push_back("--requeue");
  return words;
}

// Slurm's version where there is one: the script's forms depend on it.
SlurmVersion version_here(std::chrono::milliseconds deadline, bool needed) {
  const std::vector<std::string> words{"sbatch", "--version"};
  const CommandOutput said = run_command(words, deadline);
  if (needed && (said.late || said.code != 0)) {
    fail(said.late ? ErrorKind::stalled : ErrorKind::resource, "{}", describe_failure(words, said, deadline));
  }
  const SlurmVersion version = parse_slurm_version(said.code == 0 ? said.output : "");
  if (!version.known()) std::printf("note: no sbatch here says its version, so the forms are the newest's\n");
  return version;
}

// `after`: the job that this one follows in a chain; empty for the first.
std::string render(const SubmitArguments& arguments, const LoadedJob& loaded, const Site& site, const Path& run_dir,
                   const std::string& after) {
  const Batch& batch = site.slurm().batch();
  BatchRequest request;
  const int ranks = static_cast<int>(loaded.job.resolved().ranks());
  const int wanted = ranks_wanted_on_node(site, ranks);
  request.nodes = arguments.nodes > 0 ? arguments.nodes : wanted > 0 ? std::max(1, ranks / wanted) : 1;
  request.ranks_per_node = ranks_per_node(site, ranks, request.nodes);
  request.spares = arguments.spares;
  request.job_name = loaded.job.name();
  request.time_limit =
      std::chrono::ceil<seconds>(parse_duration(arguments.time.empty() ? batch.time_limit() : arguments.time));
  request.lead_time = lead_time(batch, run_dir, request.time_limit);
  request.run_dir = run_dir;
  // One that keeps no checkpoints could only begin anew, in a folder that is used.
  request.requeue = !arguments.no_requeue && !loaded.job.checkpoint().none();
  // A chain's next job goes on, so this one must not; Slurm may still start it again when a node is lost.
  request.command = run_command_of(arguments, request.requeue && arguments.chain == 1, run_dir);
  request.after = after;
  const Path file = find_template(arguments.job.site);
  const std::string text = read_file(file, ErrorKind::config);
  if (arguments.chain > 1 && text.find("{{dependency}}") == std::string::npos) {
    fail(ErrorKind::config,
         "--chain: {} has no line {{{{dependency}}}}, so jobs would not wait for each other; add one", file.string());
  }
  const SlurmVersion version = version_here(parse_duration(site.slurm().command_deadline()), !arguments.dry_run);
  return fill_template(text, batch_words(request, site, version), file.string());
}

// The job's number. `link`: of a chain, from 1.
std::string submit(const std::string& script, const Site& site, const Path& run_dir, int link) {
  const Path file = run_dir / (link == 1 ? "train.sbatch" : fmt::format("train-{}.sbatch", link));
  ReplacedFile replaced(file);
  std::ofstream stream(replaced.partial(), std::ios::trunc);
  stream << script;
  stream.close();
  if (!stream) fail(ErrorKind::resource, "cannot write {}", file.string());
  replaced.commit();
  std::string job = output_of({"sbatch", "--parsable", file.string()}, parse_duration(site.slurm().command_deadline()));
  job = job.substr(0, job.find_first_of(";\n"));  // "77;cluster"
  std::printf("submitted job %s; its output will be %s/logs/slurm-%s.out, and `ananke status %s` tells how it is\n",
              job.c_str(), run_dir.c_str(), job.c_str(), job.c_str());
  return job;
}

void check_chain(const SubmitArguments& given, const LoadedJob& loaded) {
  constexpr int most = 1000;
  if (given.chain < 1 || given.chain > most) fail(ErrorKind::usage, "--chain {} is none of 1 to {}", given.chain, most);
  if (given.chain > 1 && loaded.job.checkpoint().none()) {
    fail(ErrorKind::config, "--chain {}: the job keeps no checkpoints, so the next would begin anew", given.chain);
  }
}

}  // namespace

int command_submit(const Arguments& arguments) {
  SubmitArguments given;
  CommandOptions options(
      "submit", "JOB [options]",
      "Gives a job to Slurm: checks it, makes a batch script from the site's template, and submits that. The\n"
      "job stops with a checkpoint before its time is over, and is requeued while it gets on.");
  given.job.add_to(options);
  options.add()("nodes", po::value(&given.nodes)->value_name("N"),
                "number of nodes; default: ranks / slurm.ranks_per_node of the site, else 1")(
      "spares", po::value(&given.spares)->value_name("K")->default_value(0),
      "so many nodes more are allocated; the health of all is asked, and the job uses those that are well")(
      "time", po::value(&given.time)->value_name("DURATION"), "time limit, such as \"90min\"; default: the site's")(
      "chain", po::value(&given.chain)->value_name("N"),
      "so many jobs, each of which goes on when the one before has ended; default: 1, requeued as often as it takes")(
      "resume", po::bool_switch(&given.resume), "go on from the newest complete checkpoint of the run folder")(
      "no-requeue", po::bool_switch(&given.no_requeue), "once it has stopped, leave it so")(
      "dry-run", po::bool_switch(&given.dry_run), "print the script and leave");
  if (!options.read(arguments)) return 0;
  given.job.complete(options);
  if (options.given("nodes") && (given.nodes < 1 || given.nodes > 1 << 20)) {
    fail(ErrorKind::usage, "--nodes {} is no number of nodes", given.nodes);
  }
  if (given.spares < 0 || given.spares > 1 << 20) {
    fail(ErrorKind::usage, "--spares {} is no number of nodes", given.spares);
  }
  const Site site = load_site(given.job.site);
  const LoadedJob loaded = load_checked_job(given.job);
  if (print_instead(given.job, loaded)) return 0;
  if (site.start() != Site::SRUN) {
    fail(ErrorKind::config,
         "site '{}' has no Slurm (start: LOCAL); start the job with `ananke run`, or name another --site", site.name());
  }
  stall_limits(site, loaded.job);  // refuses here, not on the cluster
  print_environment_warnings(loaded.job, site);
  const Path run_dir = std::filesystem::absolute(loaded.job.run_dir());
  check_run_folder(run_dir);
  if (given.resume) {
    check_resumable(run_dir, loaded);
  } else {
    check_unused(run_dir);
  }
  check_chain(given, loaded);
  // Refused here, and not after hours in the queue.
  if (const int refused = ask_plugins(loaded, site); refused != 0) return refused;
  const std::string script = render(given, loaded, site, run_dir, "");
  if (given.dry_run) {
    std::fputs(script.c_str(), stdout);
    if (given.chain > 1) std::printf("note: and %d more, each to go on after the one before\n", given.chain - 1);
    return 0;
  }
  make_run_folder(run_dir);
  std::string last = submit(script, site, run_dir, 1);
  given.resume = true;
  for (int link = 2; link <= given.chain; ++link) {
    last = submit(render(given, loaded, site, run_dir, last), site, run_dir, link);
  }
  return 0;
}

}  // namespace ananke
