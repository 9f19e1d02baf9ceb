// How gradients get to their owners: NCCL's reduce-scatter in fp32 against bf16 that travels all to all and is summed
// in fp32 in the order of the ranks, by NCCL and a kernel or by one kernel that reads from the other GPUs (sum_blocks
// of backend_cuda). One line a way: time, bytes that a rank receives in a second, ratio to the reduce-scatter.
//
//   cuda_wire_bench [ranks [hosts [MiB of gradients in bf16]]]      default: all GPUs, 1 host, 512 MiB
//   ANANKE_BENCH_BLOCKS=32 cuda_wire_bench                          with so many thread blocks of that kernel
//
// Ranks are processes with a GPU each. With more hosts than one, neighbouring ranks are told to be on so many different
// ones (NCCL_HOSTID), so that only those of one host use NVLink and the others talk through sockets.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "plugins/backend_cuda/operators/cuda_operators.h"
#include "runtime/comm/folder_rendezvous.h"
#include "tests/bench/gpu_ranks.h"
#include "tests/patience.h"
#include "tests/temporary_folder.h"

namespace ananke::testing {
namespace {

// Every element of the vector is 1 + rank / 128, exact in bf16: so is their sum.
float value_of(int rank) { return 1.0F + static_cast<float>(rank) / 128; }

void check_sum(const GpuRank& me, const OnDevice<float>& sum, const char* way) {
  float wanted = 0;
  for (int p = 0; p < me.size; ++p) wanted += value_of(p);
  const std::vector<float> got = sum.read();
  const auto wrong = std::count_if(got.begin(), got.end(), [&](float value) { return value != wanted; });
  if (wrong > 0) fail(ErrorKind::numeric, "{}: {} of {} sums are not {}", way, wrong, got.size(), wanted);
}

void measure(GpuRank& me, int hosts, std::int64_t mebibytes) {
  const auto world = me.communicator("world");
  cuda::CudaOperators operators(me.device->facts(), me.device->memory(), me.device->host_memory());
  Wire& wire = *operators.set().wire;
  Stream& stream = me.network();
  const std::int64_t range = (mebibytes << 19) / me.size, whole = range * me.size;
  const OnDevice<float> gradients(*me.device, std::vector<float>(static_cast<std::size_t>(whole), value_of(me.rank)));
  const OnDevice<float> sum(*me.device, range);
  const Buffer buffers = me.device->memory().allocate(static_cast<std::size_t>(4 * whole), "bench");
  const Shape rows{me.size, range};
  const TensorView sent = buffers.view(DType::bf16, rows),
                   landed = buffers.view(DType::bf16, rows, static_cast<std::size_t>(2 * whole));
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(me.size), range);
  const auto convert = [&] { wire.to_bf16(stream, {gradients.view().reshaped(rows), 0, sent}); };
  const auto exchange = [&] { world->all_to_all(stream, sent, counts, landed, counts); };
  const auto add = [&] { wire.landing_sum(stream, {landed, sum.view(), false}); };
  const bool shared = hosts == 1 && world->share(stream, buffers.view(DType::u8, {4 * whole}));
  const auto direct = [&] { world->sum_parts(stream, sent, sum.view(), false); };
  struct Way {
    const char* name;
    std::int64_t element;  // bytes
    std::function<void()> run;
    bool sums;
  };
  const Way ways[] = {
      {"reduce-scatter fp32", 4, [&] { world->reduce_scatter(stream, gradients.view(), sum.view()); }, true},
      {"to bf16", 0, convert, false},
      {"all-to-all bf16", 2, exchange, false},
      {"all-to-all bf16 and sum fp32", 2, [&] { exchange(), add(); }, true},
      {"to bf16, all-to-all, sum fp32", 2, [&] { convert(), exchange(), add(); }, true},
      {"sum fp32 from GPU to GPU", 2, direct, true},
      {"to bf16, sum from GPU to GPU", 2, [&] { convert(), direct(); }, true}};
  Clock clock(stream);
  double ceiling = 0;
  for (const Way& way : ways) {
    if (!shared && std::string_view(way.name).ends_with("from GPU to GPU")) continue;
    const double us = clock.time(way.run);
    if (way.sums) check_sum(me, sum, way.name);
    if (ceiling == 0) ceiling = us;
    if (me.rank != 0) continue;
    const double received = static_cast<double>(way.element * range * (me.size - 1));
    fmt::print(
        "{:<30} {} ranks on {} host{}, {} MiB in bf16 {:>10.1f} us {:>7.1f} GB/s {:>5.2f} of the reduce-scatter\n",
        way.name, me.size, hosts, hosts == 1 ? "" : "s", mebibytes, us, received / us * 1e-3, us / ceiling);
    std::fflush(stdout);
  }
  operators.check();
}

int run_rank(const std::string& folder, int rank, int size, int hosts, std::int64_t mebibytes) {
  GpuRank me;
  me.rank = rank;
  me.size = size;
  me.deadline = std::chrono::minutes(2);
  me.rendezvous = std::make_unique<FolderRendezvous>(folder, rank, size, test_patience);
  me.device = open_gpu(rank);
  if (const char* blocks = std::getenv("ANANKE_BENCH_BLOCKS")) me.sum_blocks = std::atoi(blocks);
  measure(me, hosts, mebibytes);
  return 0;
}

int run_all(int size, int hosts, const std::string& mebibytes) {
  const TemporaryFolder folder;
  std::vector<pid_t> processes;
  for (int rank = 0; rank < size; ++rank) {
    const std::string host = "NCCL_HOSTID=bench-" + std::to_string(rank * hosts / size);
    processes.push_back(start_again(
        {"rank", folder.path(), std::to_string(rank), std::to_string(size), std::to_string(hosts), mebibytes},
        hosts > 1 ? host : ""));
  }
  return wait_for_all(processes);
}

int run(int argc, char** argv) {
  if (argc == 7 && std::string(argv[1]) == "rank") {
    return run_rank(argv[2], std::atoi(argv[3]), std::atoi(argv[4]), std::atoi(argv[5]), std::atoll(argv[6]));
  }
  const int size = argc > 1 ? std::atoi(argv[1]) : gpus(), hosts = argc > 2 ? std::atoi(argv[2]) : 1;
  const std::string mebibytes = argc > 3 ? argv[3] : "512";
  if (size < 2 || size > gpus()) {
    fail(ErrorKind::config, "{} ranks, but this machine has {} GPUs; give a number from 2 to that", size, gpus());
  }
  if (hosts < 1 || size % hosts != 0 || std::atoll(mebibytes.c_str()) < 1) {
    fail(ErrorKind::config, "{} hosts for {} ranks and {} MiB; give a divisor of the ranks and 1 MiB or more", hosts,
         size, mebibytes);
  }
  return run_all(size, hosts, mebibytes);
}

}  // namespace
}  // namespace ananke::testing

int main(int argc, char** argv) {
  return ananke::testing::told("cuda_wire_bench", [&] { return ananke::testing::run(argc, argv); });
}
