// A worker from its start to its first collective, by the product's own way: identity, control channel, the backend
// plugin, a communicator over all ranks, one all-reduce. Launched as by `ananke run`:
//   startup_worker PLUGIN            a worker; rank 0 prints CLOCK_MONOTONIC in ns after the all-reduce
//   startup_worker PLUGIN RANKS DIR  the launcher
//   startup_worker PLUGIN RANKS DIR INTERFACE  likewise by srun, in an allocation; the workers' network interface
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <numeric>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "launcher/launch.h"
#include "launcher/slurm/srun_launch.h"
#include "launcher/supervise.h"
#include "runtime/base/log.h"
#include "runtime/bootstrap/identity.h"
#include "runtime/control/control_client.h"
#include "runtime/device/device.h"
#include "runtime/plugin/registry.h"
#include "runtime/roles/backend.h"

namespace {

using namespace ananke;

constexpr const char* interface_variable = "STARTUP_INTERFACE";

long long now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000ll + time.tv_nsec;
}

bool reduce_once(Backend& backend, ControlClient& control) {
  std::vector<int> ranks(static_cast<std::size_t>(control.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  auto world = backend.make_communicator("world", ranks, control);
  Stream& stream = backend.device().stream(Resource::network);
  float one = 1;
  world->all_reduce(stream, view_of(&one, {1}), Reduction::sum);
  stream.synchronize();
  return one == static_cast<float>(control.size());
}

int work(const std::string& plugin) {
  const Identity me = identify(std::chrono::seconds(60));
  auto control = ControlClient::connect({.address = std::getenv(control_variable),
                                         .secret = std::getenv(secret_variable),
                                         .rank = me.rank,
                                         .size = me.size,
                                         .host = me.host,
                                         .on_end = [](const Error&) { std::_Exit(1); }});
  PluginRegistry plugins;
  plugins.load("backend_host", plugin);
  const Job job;
  Site site;
  if (const char* interface = std::getenv(interface_variable)) site.set_network_interface(interface);
  const RoleContext context{job, site, MeshShape{1, me.size}, me.rank, me.local_size};
  auto backend = plugins.create<Backend>("backend_host", context, "");
  const bool right = reduce_once(*backend, *control);
  if (me.rank == 0) control->console(std::to_string(now_ns()));
  control->finish(right ? 0 : 1);
  return right ? 0 : 1;
}

int launch(const std::string& self, const std::string& plugin, int ranks, const std::string& folder,
           const std::string& interface) {
  open_log(std::filesystem::path(folder) / "launcher.log", "launcher", LogLevel::info);
  LaunchSpec spec;
  spec.program = std::filesystem::read_symlink("/proc/self/exe").string();
  spec.arguments = {self, plugin};
  spec.ranks = ranks;
  spec.run_dir = folder;
  spec.console = [](const std::string& line) { std::printf("%s\n", line.c_str()); };
  LaunchResult result;
  if (interface.empty()) {
    result = launch_local(spec);
  } else {
    Site site;
    site.set_start(Site::SRUN);
    site.set_network_interface(interface);
    const char* nodes = std::getenv("SLURM_JOB_NUM_NODES");
    site.mutable_slurm()->set_ranks_per_node(
        static_cast<unsigned>(ranks / std::max(1, std::atoi(nodes ? nodes : "1"))));
    spec.environment = {{interface_variable, interface}};
    SrunWorkers workers(spec, plan_srun(site, MeshShape{.shard = ranks}).srun);
    result = launch(spec, workers);
  }
  if (result.exit_code != 0) std::fprintf(stderr, "%s\n", result.report.c_str());
  return result.exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (std::string(argv[1]) == "supervise") {  // as `ananke supervise`, which srun starts
      return supervise({argv + 2, argv + argc}, [](const auto& words) { return work(words.front()); });
    }
    if (argc >= 4) return launch(argv[0], argv[1], std::atoi(argv[2]), argv[3], argc > 4 ? argv[4] : "");
    return work(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "startup_worker: %s\n", error.what());
    return 1;
  }
}
