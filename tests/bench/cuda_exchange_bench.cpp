// Token exchange straight between GPUs, counts on the device, against NCCL's all-to-all of the same run. One line a
// way: thread blocks (SMs), time, bytes that a rank sends to the others in a second, ratio to NCCL.
//
//   cuda_exchange_bench [ranks [MiB that a rank sends to the others [blocks...]]]    default: all GPUs, 96 MiB, 2 4 8
//   16
//
// Ranks are processes with a GPU each. Where there are too few GPUs they are threads that share the first: without
// NVLink and NCCL that tells only what the blocks can move, and what sum_parts() can.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "runtime/comm/folder_rendezvous.h"
#include "tests/bench/gpu_ranks.h"
#include "tests/patience.h"
#include "tests/plugins/backend_cuda/peer_ranks.h"
#include "tests/temporary_folder.h"

namespace ananke::testing {
namespace {

constexpr std::int64_t row = 12288 + 64;  // bytes: 6144 values in bf16, and the routing

struct Sizes {
  std::int64_t each = 0;  // rows for each rank
  std::int64_t ranks = 0;
  std::int64_t all() const { return each * ranks; }
  double sent() const { return static_cast<double>(each * (ranks - 1) * row); }
};

Sizes sizes_of(int ranks, std::int64_t mebibytes) {
  return {std::max<std::int64_t>(1, (mebibytes << 20) / row / std::max(1, ranks - 1)), ranks};
}

// What is exchanged: rank r sends bytes of r + 1.
struct Tensors {
  Tensors(Device& device, int rank, const Sizes& s)
      : send(device,
             std::vector<std::uint8_t>(static_cast<std::size_t>(s.all() * row), static_cast<std::uint8_t>(rank + 1))),
        receive(device, s.all() * row),
        counts(device, std::vector<std::int32_t>(static_cast<std::size_t>(s.ranks), static_cast<std::int32_t>(s.each))),
        sizes(s) {}
  RowExchange rows() const {
    const Shape shape{sizes.all(), row};
    return {send.view().reshaped(shape),
            counts.view().reshaped({sizes.ranks, 1}),
            receive.view().reshaped(shape),
            {},
            0,
            {}};
  }
  void check(const char* way) const {
    const std::vector<std::uint8_t> got = receive.read();
    for (std::int64_t i = 0; i < sizes.all() * row; ++i) {
      const auto wanted = static_cast<std::uint8_t>(i / (sizes.each * row) + 1);
      if (got[static_cast<std::size_t>(i)] != wanted) fail(ErrorKind::numeric, "{}: byte {} is not {}", way, i, wanted);
    }
  }
  OnDevice<std::uint8_t> send, receive;
  OnDevice<std::int32_t> counts;
  const Sizes sizes;
};

void print(const char* way, const Sizes& s, int blocks, double us, double nccl) {
  fmt::print("{:<34} {} ranks, {:.0f} MiB sent by each", way, s.ranks, s.sent() / (1 << 20));
  if (blocks > 0) fmt::print(", {:>2} blocks", blocks);
  fmt::print(" {:>10.1f} us {:>7.1f} GB/s per direction", us, s.sent() / us * 1e-3);
  if (nccl > 0) fmt::print(" {:>5.2f} of NCCL's time", us / nccl);
  fmt::print("\n");
  std::fflush(stdout);
}

int run_rank(const std::string& folder, int rank, int size, std::int64_t mebibytes, const std::vector<int>& blocks) {
  GpuRank me;
  me.rank = rank;
  me.size = size;
  me.deadline = std::chrono::minutes(2);
  me.rendezvous = std::make_unique<FolderRendezvous>(folder, rank, size, test_patience);
  me.device = open_gpu(rank);
  const Sizes s = sizes_of(size, mebibytes);
  const Tensors tensors(*me.device, rank, s);
  Clock clock(me.network());
  const auto world = me.communicator("world");
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(size), s.each * row);
  const double nccl =
      clock.time([&] { world->all_to_all(me.network(), tensors.send.view(), counts, tensors.receive.view(), counts); });
  tensors.check("NCCL");
  if (rank == 0) print("NCCL's all-to-all, counts on host", s, 0, nccl, nccl);
  for (const int count : blocks) {
    me.row_blocks = count;
    const auto own = me.communicator("blocks " + std::to_string(count));
    if (!own->share(me.network(), tensors.receive.view())) {
      fail(ErrorKind::config, "these GPUs do not reach each other's memory");
    }
    me.device->zero(me.network(), tensors.receive.view().data, tensors.receive.view().bytes());
    const double us = clock.time([&] { own->all_to_all_rows(me.network(), tensors.rows()); });
    tensors.check("from GPU to GPU");
    if (rank == 0) print("from GPU to GPU, counts on device", s, count, us, nccl);
  }
  return 0;
}

// Threads on the first GPU.
int run_sharing(int size, std::int64_t mebibytes, const std::vector<int>& blocks) {
  auto world = LocalWorld::create(size, std::chrono::seconds(60));
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  const auto run = [&](int rank) {
    const auto rendezvous = world->join(rank);
    const auto device = open_gpu(0);
    const Sizes s = sizes_of(size, mebibytes);
    const Tensors tensors(*device, rank, s);
    const std::int64_t part = s.all() * row / 2 / size / 8 * 8;  // elements of bf16
    const OnDevice<float> sum(*device, part);
    const TensorView parts{tensors.receive.view().data, DType::bf16, Shape{size, part}};
    int told = 0;
    for (const int count : blocks) {
      PeerRank me(rank, size, *rendezvous, *device, {.row_blocks = count, .sum_blocks = count});
      me.told = told;
      if (const std::string why = me.share(tensors.receive.view()); !why.empty()) fail(ErrorKind::internal, "{}", why);
      me.meet();
      Clock clock(me.stream());
      const double us = clock.time([&] { me.exchange.all_to_all_rows(cuda::raw(me.stream()), tensors.rows()); });
      if (rank == 0) print("on one GPU, counts on device", s, count, us, 0);
      me.meet();
      tensors.check("on one GPU");
      me.meet();
      const double sum_us = clock.time([&] { me.exchange.sum_parts(cuda::raw(me.stream()), parts, sum.view(), true); });
      if (rank == 0) print("on one GPU, sum of bf16 parts", s, count, sum_us, 0);
      me.meet();
      told = me.told;
    }
  };
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { errors[static_cast<std::size_t>(rank)] = error_of([&] { run(rank); }); });
  }
  for (auto& thread : threads) thread.join();
  int bad = 0;
  for (const std::string& error : errors) {
    if (error.empty()) continue;
    bad = 1;
    fmt::print(stderr, "cuda_exchange_bench: {}\n", error);
  }
  return bad;
}

std::vector<int> numbers(int argc, char** argv, int first) {
  std::vector<int> all;
  for (int i = first; i < argc; ++i) all.push_back(std::atoi(argv[i]));
  return all.empty() ? std::vector<int>{2, 4, 8, 16} : all;
}

int run(int argc, char** argv) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);  // ranks that share a GPU have many streams
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  if (argc > 5 && std::string(argv[1]) == "rank") {
    return run_rank(argv[2], std::atoi(argv[3]), std::atoi(argv[4]), std::atoll(argv[5]), numbers(argc, argv, 6));
  }
  const int size = argc > 1 ? std::atoi(argv[1]) : std::max(2, gpus());
  const std::int64_t mebibytes = argc > 2 ? std::atoll(argv[2]) : 96;
  if (size < 2 || size > cuda::most_peers || gpus() < 1 || mebibytes < 1) {
    fail(ErrorKind::config, "{} ranks, {} MiB, {} GPUs; give 2 to {} ranks and 1 MiB or more, on a machine with a GPU",
         size, mebibytes, gpus(), cuda::most_peers);
  }
  const std::vector<int> blocks = numbers(argc, argv, 3);
  if (gpus() < size) return run_sharing(size, mebibytes, blocks);
  const TemporaryFolder folder;
  std::vector<pid_t> processes;
  for (int rank = 0; rank < size; ++rank) {
    std::vector<std::string> arguments{"rank", folder.path(), std::to_string(rank), std::to_string(size),
                                       std::to_string(mebibytes)};
    for (const int count : blocks) arguments.push_back(std::to_string(count));
    processes.push_back(start_again(arguments));
  }
  return wait_for_all(processes);
}

}  // namespace
}  // namespace ananke::testing

int main(int argc, char** argv) {
  return ananke::testing::told("cuda_exchange_bench", [&] { return ananke::testing::run(argc, argv); });
}
