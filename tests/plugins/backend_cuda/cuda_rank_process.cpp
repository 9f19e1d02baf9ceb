// One rank as a process with a GPU, for cuda_process_test.cpp:  cuda_rank_process FOLDER RANK SIZE SCENARIO
//   sum    every collective once, checked
//   peers  exchanges between memories, without NCCL, all ranks on the first GPU
//   peers_kill  likewise; the last rank kills itself, and the first then makes an exchange, which is stopped
//   kill   the last rank kills itself between two collectives, the others go on until they get an error
//   kill_rows  likewise, between two exchanges of rows
// Exits with the error's kind and writes the message to FOLDER/error.RANK.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "runtime/comm/folder_rendezvous.h"
#include "tests/patience.h"
#include "tests/plugins/backend_cuda/peer_ranks.h"

namespace ananke::testing {
namespace {

void check(bool good, const char* what) {
  if (!good) fail(ErrorKind::numeric, "{} gave wrong numbers", what);
}

void sum(GpuRank& me, Communicator& world) {
  const std::int64_t n = 100003;
  const auto length = static_cast<std::size_t>(n);
  OnDevice<float> one(*me.device, std::vector<float>(length, static_cast<float>(me.rank + 1)));
  OnDevice<float> all(*me.device, n * me.size), reduced(*me.device, n), exchanged(*me.device, n * me.size);
  world.all_gather(me.network(), one.view(), all.view());
  world.reduce_scatter(me.network(), all.view(), reduced.view());
  world.all_reduce(me.network(), one.view(), Reduction::sum);
  world.broadcast(me.network(), reduced.view(), me.size - 1);
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(me.size), n);
  world.all_to_all(me.network(), all.view(), counts, exchanged.view(), counts);
  me.network().synchronize();
  const std::vector<float> gathered = all.read(), received = exchanged.read();
  for (int p = 0; p < me.size; ++p) {
    check(gathered[static_cast<std::size_t>(p * n + n / 2)] == static_cast<float>(p + 1), "all_gather");
    check(received[static_cast<std::size_t>(p * n + n - 1)] == static_cast<float>(me.rank + 1), "all_to_all");
  }
  check(one.read()[0] == static_cast<float>(me.size * (me.size + 1) / 2), "all_reduce");
  check(reduced.read()[7] == static_cast<float>(me.size * me.size), "reduce_scatter and broadcast");
}

void kill_last(GpuRank& me, Communicator& world) {
  OnDevice<float> buffer(*me.device, std::vector<float>(300000, 1.F));
  for (int i = 0;; ++i) {
    world.all_reduce(me.network(), buffer.view(), Reduction::max);
    if (i == 3 && me.rank == me.size - 1) raise(SIGKILL);
    me.network().synchronize();
  }
}

// The same in exchanges straight between the GPUs.
void kill_last_in_rows(GpuRank& me, Communicator& world) {
  constexpr std::int64_t rows = 100, row = 4096;
  OnDevice<std::uint8_t> memory(*me.device, rows * me.size * row), send(*me.device, rows * me.size * row);
  OnDevice<std::int32_t> counts(*me.device, std::vector<std::int32_t>(static_cast<std::size_t>(me.size), rows));
  if (!world.share(me.network(), memory.view())) {  // no such exchange here
    return kill_last(me, world);
  }
  const Shape shape{rows * me.size, row};
  for (int i = 0;; ++i) {
    world.all_to_all_rows(
        me.network(),
        {send.view().reshaped(shape), counts.view().reshaped({me.size, 1}), memory.view().reshaped(shape), {}, 0, {}});
    if (i == 3 && me.rank == me.size - 1) raise(SIGKILL);
    me.network().synchronize();
  }
}

void exchange_between_memories(GpuRank& me) {
  PeerRank peer(me.rank, me.size, *me.rendezvous, *me.device);
  RowRounds{.row = 4112, .most = 61, .rounds = 3}.run(peer);
  PeerRank second(me.rank, me.size, *me.rendezvous, *me.device);  // another communicator, by the same blocks of memory
  second.told = 1000;
  sum_rounds(second, {7, 40000});
  RowRounds{.row = 16, .most = 9, .rounds = 2}.run(peer);
  peer.meet();
}

// Memory of a process that is gone may still be written to.
void exchange_with_the_dead(GpuRank& me) {
  PeerRank peer(me.rank, me.size, *me.rendezvous, *me.device);
  constexpr std::int64_t rows = 100, row = 4096;
  OnDevice<std::uint8_t> memory(*me.device, rows * me.size * row), send(*me.device, rows * me.size * row);
  OnDevice<std::int32_t> counts(*me.device, std::vector<std::int32_t>(static_cast<std::size_t>(me.size), rows));
  if (const std::string reason = peer.share(memory.view()); !reason.empty()) fail(ErrorKind::internal, "{}", reason);
  const cuda::PeerCard mine{this_process(), "", 0, ""};
  const cuda::PeerCard last = cuda::decode(me.rendezvous->exchange("peers/cards", {}, cuda::encode(mine)).back());
  peer.meet();
  if (me.rank == me.size - 1) raise(SIGKILL);
  while (life_of(last.process) != Life::gone) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const Shape shape{rows * me.size, row};
  peer.exchange.all_to_all_rows(
      cuda::raw(peer.stream()),
      {send.view().reshaped(shape), counts.view().reshaped({me.size, 1}), memory.view().reshaped(shape), {}, 0, {}});
  peer.exchange.stop();
  peer.stream().synchronize();
  check(counts.read().front() == rows, "a device whose peer has gone");
}

void run(const std::string& folder, int rank, int size, const std::string& scenario) {
  GpuRank me;
  me.rank = rank;
  me.size = size;
  me.deadline = std::chrono::minutes(5);  // what ends the others is that the process is gone
  me.rendezvous = std::make_unique<FolderRendezvous>(folder, rank, size, test_patience);
  me.device = open_gpu(scenario.starts_with("peers") ? 0 : rank);
  if (scenario == "peers") return exchange_between_memories(me);
  if (scenario == "peers_kill") return exchange_with_the_dead(me);
  const auto world = me.communicator("world");
  if (scenario == "kill") return kill_last(me, *world);
  if (scenario == "kill_rows") return kill_last_in_rows(me, *world);
  sum(me, *world);
}

}  // namespace
}  // namespace ananke::testing

int main(int argc, char** argv) {
  if (argc != 5) return 100;
  const std::string folder = argv[1];
  try {
    ananke::testing::run(folder, std::atoi(argv[2]), std::atoi(argv[3]), argv[4]);
    return 0;
  } catch (const ananke::Error& error) {
    std::ofstream(folder + "/error." + argv[2]) << error.what();
    return static_cast<int>(error.kind());
  }
}
