// One rank as a process, for process_test.cpp:  rank_process FOLDER RANK SIZE TRANSPORT SCENARIO
//   sum    every collective once, checked
//   kill   the last rank kills itself between two collectives, the others go on until they get an error
// Exits with the error's kind and writes the message to FOLDER/error.RANK.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "plugins/backend_host/backend_host.h"
#include "plugins/backend_host/backend_host.pb.h"
#include "runtime/comm/folder_rendezvous.h"
#include "tests/patience.h"

namespace ananke::testing {
namespace {

TensorView flat(std::vector<float>& v) { return view_of(v.data(), Shape{static_cast<std::int64_t>(v.size())}); }

void check(bool good, const char* what) {
  if (!good) fail(ErrorKind::numeric, "{} gave wrong numbers", what);
}

void sum(Backend& backend, Communicator& world) {
  Stream& stream = backend.device().stream(Resource::network);
  const int size = world.size(), rank = world.rank();
  const std::int64_t n = 100003;
  std::vector<float> one(n, static_cast<float>(rank + 1)), all(n * size);
  std::vector<float> reduced(n), exchanged(n * size);
  world.all_gather(stream, flat(one), flat(all));
  world.reduce_scatter(stream, flat(all), flat(reduced));
  world.all_reduce(stream, flat(one), Reduction::sum);
  world.broadcast(stream, flat(reduced), size - 1);
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(size), n);
  world.all_to_all(stream, flat(all), counts, flat(exchanged), counts);
  stream.synchronize();
  for (int p = 0; p < size; ++p) {
    check(all[static_cast<std::size_t>(p * n + n / 2)] == static_cast<float>(p + 1), "all_gather");
    check(exchanged[static_cast<std::size_t>(p * n + n - 1)] == static_cast<float>(rank + 1), "all_to_all");
  }
  check(one[0] == static_cast<float>(size * (size + 1) / 2), "all_reduce");
  check(reduced[7] == static_cast<float>(size * size), "reduce_scatter and broadcast");
}

void kill_last(Backend& backend, Communicator& world) {
  Stream& stream = backend.device().stream(Resource::network);
  std::vector<float> buffer(300000, 1.f);
  for (int i = 0;; ++i) {
    world.all_reduce(stream, flat(buffer), Reduction::max);
    if (i == 3 && world.rank() == world.size() - 1) raise(SIGKILL);
    stream.synchronize();
  }
}

void run(const std::string& folder, int rank, int size, int transport, const std::string& scenario) {
  Job job;
  Site site;
  RoleContext context{.job = job, .site = site, .mesh = {1, size}, .rank = rank, .node_ranks = size};
  plugin::BackendHost config;
  config.set_transport(static_cast<plugin::BackendHost::Transport>(transport));
  BackendHost backend(context, config);
  FolderRendezvous rendezvous(folder, rank, size, test_patience);
  std::vector<int> everyone(static_cast<std::size_t>(size));
  std::iota(everyone.begin(), everyone.end(), 0);
  auto world = backend.make_communicator("world", everyone, rendezvous);
  if (scenario == "kill") return kill_last(backend, *world);
  sum(backend, *world);
}

}  // namespace
}  // namespace ananke::testing

int main(int argc, char** argv) {
  if (argc != 6) return 100;
  const std::string folder = argv[1];
  try {
    ananke::testing::run(folder, std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]), argv[5]);
    return 0;
  } catch (const ananke::Error& error) {
    std::ofstream(folder + "/error." + argv[2]) << error.what();
    return static_cast<int>(error.kind());
  }
}
