// `ananke worker`: one rank of a job. Started by `ananke run`, or by srun; not for people.
#include <unistd.h>

#include <atomic>
#include <boost/program_options.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "ananke/site.pb.h"
#include "launcher/arguments.h"
#include "launcher/command.h"
#include "launcher/deadlines.h"
#include "launcher/last_words.h"
#include "launcher/launch.h"
#include "launcher/stacks.h"
#include "launcher/worker_signals.h"
#include "runtime/base/log.h"
#include "runtime/bootstrap/node_order.h"
#include "runtime/config/job.h"
#include "runtime/config/site.h"
#include "runtime/control/control_client.h"
#include "runtime/engine/worker.h"

namespace ananke {
namespace {

namespace po = boost::program_options;

struct WorkerArguments {
  std::filesystem::path job, site;
  std::string owner;
  bool resume = false;
};

WorkerArguments parse(const std::vector<std::string>& words) {
  po::options_description options;
  options.add_options()("job", po::value<std::string>())("site", po::value<std::string>())("resume", "")(
      "owner", po::value<std::string>()->default_value(""));
  po::variables_map values;
  read_arguments(words, options, po::positional_options_description(), &values);
  if (values.count("job") == 0 || values.count("site") == 0) {
    fail(ErrorKind::usage, "a worker needs --job and --site; start the job with `ananke run`");
  }
  return {values["job"].as<std::string>(), values["site"].as<std::string>(), values["owner"].as<std::string>(),
          values.count("resume") != 0};
}

std::string required_variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    fail(ErrorKind::usage, "{} is not set: a worker is started by `ananke run`, which tells it where the launcher is",
         name);
  }
  return value;
}

// The launcher has redirected our standard error into this very file, unless somebody else started us.
bool is_standard_error(const std::filesystem::path& file) {
  std::error_code different;
  return std::filesystem::equivalent("/proc/self/fd/2", file, different);
}

void open_rank_log(const WorkerArguments& arguments, int rank) {
  const std::filesystem::path logs = arguments.job.parent_path() / "logs";
  std::filesystem::create_directories(logs);
  const std::filesystem::path file = logs / fmt::format("rank-{}.log", rank);
  const LogEcho echo = is_standard_error(file) ? LogEcho::none : LogEcho::warnings;
  open_log(file, fmt::format("rank {}", rank), LogLevel::info, echo);
}

// What this worker is doing, as others are told.
struct Trails {
  std::shared_ptr<CallTrail> calls = std::make_shared<CallTrail>();
  std::shared_ptr<ItemTrail> items = std::make_shared<ItemTrail>();
};

ControlClientOptions::Item item_of(const ItemTrail& items) {
  const auto [place, begun] = items.now();
  return {begun, place.number, to_string(place)};
}

std::unique_ptr<ControlClient> join_job(const Identity& me, const ControlDeadlines& deadlines, const Trails& trails,
                                        std::function<void()> on_stacks_wanted) {
  ControlClientOptions options;
  options.address = required_variable(control_variable);
  options.secret = required_variable(secret_variable);
  // Nothing that this process starts or loads needs it.
  unsetenv(secret_variable);
  options.rank = me.rank;
  options.size = me.size;
  options.host = me.host;
  options.join_deadline = deadlines.join;
  options.exchange_deadline = deadlines.exchange;
  options.step_deadline = deadlines.step;
  // The other threads may be deep in a collective that never ends: leave without them. What is on disk is complete or
  // recognised as incomplete at any moment.
  options.on_end = [](const Error& error) {
    log_error("this worker ends: {}", error.what());
    flush_log();
    _exit(static_cast<int>(error.kind()));
  };
  options.activity = [calls = trails.calls] { return calls->activity(); };
  options.item = [items = trails.items] { return item_of(*items); };
  options.on_stacks_wanted = std::move(on_stacks_wanted);
  options.on_phase = LastWords::set_phase;
  return ControlClient::connect(std::move(options));
}

// The exit code. The launcher hears of a failure before this process ends.
int work(const WorkerArguments& arguments, const Site& site, const Identity& me, ControlClient& control,
         const Trails& trails) {
  const auto report = [&](ErrorKind kind, const std::string& message) {
    log_error("{}", message);
    flush_log();
    control.fail(kind, message);
    return static_cast<int>(kind);
  };
  try {
    control.set_phase("reading the job");
    const LoadedJob job = load_resolved_job(arguments.job);
    const int code = run_worker({.job = job,
                                 .site = site,
                                 .identity = me,
                                 .control = control,
                                 .trail = trails.calls,
                                 .resume = arguments.resume,
                                 .items = trails.items,
                                 .owner = arguments.owner});
    control.finish(code);
    return code;
  } catch (const Error& error) {
    return report(error.kind(), error.what());
  } catch (const std::bad_alloc&) {
    return report(ErrorKind::resource, "out of memory");
  } catch (const std::exception& error) {
    return report(ErrorKind::internal, fmt::format("unexpected {}", error.what()));
  }
}

}  // namespace

int command_worker(const Arguments& arguments) {
  WorkerSignals signals;  // before there are other threads
  std::signal(SIGPIPE, SIG_IGN);
  const LastWords last_words;
  const WorkerArguments worker = parse(arguments.words);
  const Site site = load_site(worker.site);
  const ControlDeadlines deadlines = control_deadlines(site);
  const Identity me = in_node_order(identify(deadlines.join),
                                    [](const char* name) { return static_cast<const char*>(std::getenv(name)); });
  open_rank_log(worker, me.rank);
  log_info("rank {} of {} on {} (local {} of {}, node {}), process {}, by {}", me.rank, me.size, me.host, me.local_rank,
           me.local_size, me.node_index, getpid(), me.source);
  const Trails trails;
  std::atomic<ControlClient*> launcher{nullptr};
  std::atomic<bool> asked{false};  // by the launcher; a signal's stacks are for the log alone
  StackReporter stacks([&](std::string text) {
    ControlClient* const to = launcher;
    if (to != nullptr && asked.exchange(false)) to->give_stacks(std::move(text));
  });
  const std::unique_ptr<ControlClient> control = join_job(me, deadlines, trails, [&] {
    asked = true;
    stacks.request();
  });
  launcher = control.get();
  const StackReporter::Stop before_control(stacks);
  signals.tell(*control, [&] { stacks.request(); });
  const int code = work(worker, site, me, *control, trails);
  signals.forget();
  log_info("leaving with code {}", code);
  return code;
}

}  // namespace ananke
