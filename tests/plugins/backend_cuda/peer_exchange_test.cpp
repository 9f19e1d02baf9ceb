// Exchanges straight between the memories of ranks, which here are threads that share a GPU, or processes that do.
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <latch>

#include "plugins/backend_cuda/cuda_stream.h"
#include "tests/plugins/backend_cuda/peer_ranks.h"
#include "tests/plugins/backend_cuda/rank_processes.h"

namespace ananke::testing {
namespace {

// Before the driver is first asked: a queue for every stream of all ranks, or a kernel that waits for another rank
// holds up that one's; and no kernel is loaded while others wait.
const bool prepared = [] {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  return true;
}();

// What each rank threw, on the first GPU.
std::vector<std::string> run_on_one_gpu(int size, const std::function<void(PeerRank&)>& body,
                                        cuda::PeerExchange::Setup setup = {}) {
  return errors_of_ranks(size, [&](int r, std::unique_ptr<Rendezvous> rendezvous) {
    const auto device = open_gpu(0);
    PeerRank me(r, size, *rendezvous, *device, setup);
    body(me);
    me.meet();
  });
}

class PeersOnOneGpu : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { ANANKE_NEEDS_GPUS(1); }
  void run(const std::function<void(PeerRank&)>& body, cuda::PeerExchange::Setup setup = {}) {
    for (const std::string& error : run_on_one_gpu(GetParam(), body, setup)) EXPECT_EQ(error, "");
  }
};

TEST_P(PeersOnOneGpu, ExchangeRowsByCountsOnTheDevice) {
  run([](PeerRank& me) {
    RowRounds{.row = 16, .most = 3}.run(me);
    RowRounds{.row = 48, .most = 211}.run(me);
    RowRounds{.row = 12320, .most = 97, .rounds = 4}.run(me);
  });
}

TEST_P(PeersOnOneGpu, ExchangeWithOneBlockOrMany) {
  cudaDeviceProp device{};
  ASSERT_EQ(cudaGetDeviceProperties(&device, 0), cudaSuccess);
  for (const int blocks : {1, 3, 30}) {
    if (4 * blocks > device.multiProcessorCount) continue;  // of all ranks at once: they wait for each other
    run([](PeerRank& me) { RowRounds{.row = 4112, .most = 61, .rounds = 3}.run(me); }, {.row_blocks = blocks});
  }
}

TEST_P(PeersOnOneGpu, SumPartsInRankOrder) {
  run([](PeerRank& me) { sum_rounds(me, {1, 7, 8, 1031, 40000, 100003}); });
}

// Calls of both kinds in a row, without the host between them.
TEST_P(PeersOnOneGpu, DoNotNeedTheHostBetweenCalls) {
  run([](PeerRank& me) {
    constexpr std::int64_t rows = 64, row = 64;
    OnDevice<std::uint8_t> memory(me.device, rows * me.size * row);
    const auto bytes = [&](int value) {
      return std::vector<std::uint8_t>(static_cast<std::size_t>(rows * me.size * row),
                                       static_cast<std::uint8_t>(value));
    };
    const int values[] = {me.rank + 1, me.rank + 61};
    OnDevice<std::uint8_t> even(me.device, bytes(values[0])), odd(me.device, bytes(values[1]));
    OnDevice<std::int32_t> counts(me.device, std::vector<std::int32_t>(static_cast<std::size_t>(me.size), rows));
    OnDevice<float> sum(me.device, std::vector<float>(static_cast<std::size_t>(rows * row / 2)));
    ASSERT_EQ(me.share(memory.view()), "");
    const TensorView landing = memory.view().reshaped({rows * me.size, row});
    const TensorView parts{memory.view().data, DType::bf16, Shape{me.size, rows * row / 2}};
    me.meet();
    for (int i = 0; i < 50; ++i) {
      const TensorView send = (i % 2 == 0 ? even : odd).view();
      me.exchange.all_to_all_rows(
          cuda::raw(me.stream()),
          {send.reshaped({rows * me.size, row}), counts.view().reshaped({me.size, 1}), landing, {}, 0, {}});
      me.exchange.sum_parts(cuda::raw(me.stream()), parts, sum.view(), true);
    }
    me.stream().synchronize();
    // Block `rank` of every rank's memory is what this rank sent to each of them: its own bytes.
    float wanted = 0;
    for (int i = 0; i < 50; ++i) {
      const auto bits = static_cast<std::uint16_t>(0x101 * values[i % 2]);
      float value = 0, total = 0;
      std::memcpy(reinterpret_cast<char*>(&value) + 2, &bits, 2);
      for (int p = 0; p < me.size; ++p) total += value;
      wanted += total;
    }
    const std::vector<float> got = sum.read();
    EXPECT_EQ(std::count(got.begin(), got.end(), wanted), static_cast<std::ptrdiff_t>(got.size())) << got[0];
    me.meet();
  });
}

// More rows than there is room for are not written, and whoever waits is told.
TEST_P(PeersOnOneGpu, RefuseWhatHasNoRoom) {
  run([](PeerRank& me) {
    OnDevice<std::uint8_t> memory(me.device, 4 * 16), send(me.device, 64 * 16);
    OnDevice<std::int32_t> counts(me.device, std::vector<std::int32_t>(static_cast<std::size_t>(me.size), 3));
    ASSERT_EQ(me.share(memory.view()), "");
    me.meet();
    me.exchange.all_to_all_rows(cuda::raw(me.stream()), {send.view().reshaped({64, 16}),
                                                         counts.view().reshaped({me.size, 1}),
                                                         memory.view().reshaped({4, 16}),
                                                         {},
                                                         0,
                                                         {}});
    const std::string error = error_of([&] { me.stream().synchronize(); });
    EXPECT_NE(error.find("rows arrive at rank"), std::string::npos) << error;
    EXPECT_NE(error.find("which has room for 4"), std::string::npos) << error;
    me.meet();
  });
}

TEST_P(PeersOnOneGpu, EndWhenTheyAreStopped) {
  run([](PeerRank& me) {
    OnDevice<std::uint8_t> memory(me.device, 64);
    OnDevice<std::int32_t> counts(me.device, me.size);
    ASSERT_EQ(me.share(memory.view()), "");
    if (me.rank == 0) {  // the others never come
      const TensorView rows = memory.view().reshaped({4, 16});
      OnDevice<std::uint8_t> send(me.device, 64);
      me.exchange.all_to_all_rows(
          cuda::raw(me.stream()),
          {send.view().reshaped({4, 16}), counts.view().reshaped({me.size, 1}), rows, {}, 0, {}});
      EXPECT_EQ(cudaStreamQuery(cuda::raw(me.stream())), cudaErrorNotReady);
      me.exchange.stop();
      me.stream().synchronize();
    }
    me.meet();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, PeersOnOneGpu, ::testing::Values(2, 3, 4));

TEST(PeerMisuse, RanksWithOtherSettingsAreNamed) {
  ANANKE_NEEDS_GPUS(1);
  const auto errors = run_on_one_gpu(2, [](PeerRank& me) {
    PeerRank other(me.rank, me.size, me.rendezvous, me.device, {.row_blocks = 4 + me.rank});
    other.told = 1000;
    OnDevice<std::uint8_t> memory(me.device, 64);
    const std::string error = error_of([&] { other.share(memory.view()); });
    EXPECT_NE(error.find("exchange_blocks 4"), std::string::npos) << error;
    EXPECT_NE(error.find("exchange_blocks 5"), std::string::npos) << error;
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// By CUDA's handles for other processes; they share the first GPU and take turns on it.
TEST(PeerProcesses, ReachEachOthersMemory) {
  ANANKE_NEEDS_GPUS(1);
  const Folder folder;
  const auto codes = run_processes(folder, 2, "peers");
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(codes[static_cast<std::size_t>(rank)], 0) << folder.error_of(rank);
}

TEST(PeerProcesses, EndInPeaceWhenOneIsGone) {
  ANANKE_NEEDS_GPUS(1);
  const Folder folder;
  const auto codes = run_processes(folder, 2, "peers_kill");
  EXPECT_EQ(codes[0], 0) << folder.error_of(0);
  EXPECT_EQ(codes[1], -SIGKILL);
}

}  // namespace
}  // namespace ananke::testing
