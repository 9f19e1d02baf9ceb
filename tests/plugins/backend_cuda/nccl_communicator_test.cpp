// Every collective against a plain computation, ranks as threads with a GPU each; lost peers, aborts and deadlines.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <latch>
#include <mutex>

#include "tests/plugins/backend_cuda/gpu.h"

namespace ananke::cuda {
namespace {

using testing::error_of;
using testing::GpuRank;
using testing::OnDevice;
using testing::run_gpu_ranks;

constexpr std::int64_t counts[] = {0, 1, 7, 1031, 1000003};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Whole numbers of both signs: their sums are exact in f32, whatever their order.
float value(int rank, std::int64_t i) { return static_cast<float>((rank * 7919 + i * 31) % 4001 - 2000); }

std::vector<float> values(int rank, std::int64_t count) {
  std::vector<float> all(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) all[static_cast<std::size_t>(i)] = value(rank, i);
  return all;
}

// Sums of these depend on the order that they are taken in.
std::vector<float> rough_values(int rank, std::int64_t count) {
  std::vector<float> all(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    all[static_cast<std::size_t>(i)] = std::sin(static_cast<float>(rank * 7919 + i % 1000) + 0.5F) *
                                       std::ldexp(1.F, static_cast<int>((rank * 5 + i) % 13));
  }
  return all;
}

class Communicators : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { ANANKE_NEEDS_GPUS(GetParam()); }
  void run(const std::function<void(GpuRank&)>& body) {
    for (const std::string& error : run_gpu_ranks(GetParam(), body)) EXPECT_EQ(error, "");
  }
};

TEST_P(Communicators, GatherApartAndInPlace) {
  run([](GpuRank& me) {
    const auto world = me.communicator("world");
    for (const std::int64_t n : counts) {
      OnDevice<float> send(*me.device, values(me.rank, n)), apart(*me.device, n * me.size);
      std::vector<float> with_own(static_cast<std::size_t>(n * me.size), -1.F), expected;
      std::copy_n(values(me.rank, n).begin(), n, with_own.begin() + me.rank * n);
      OnDevice<float> in_place(*me.device, with_own);
      world->all_gather(me.network(), send.view(), apart.view());
      world->all_gather(me.network(), in_place.view().slice(me.rank * n, n), in_place.view());
      me.network().synchronize();
      for (int p = 0; p < me.size; ++p) {
        for (const float v : values(p, n)) expected.push_back(v);
      }
      EXPECT_EQ(apart.read(), expected) << n;
      EXPECT_EQ(in_place.read(), expected) << n;
    }
  });
}

TEST_P(Communicators, ReduceAndScatter) {
  run([](GpuRank& me) {
    const auto world = me.communicator("world");
    for (const std::int64_t n : counts) {
      const std::vector<float> mine = values(me.rank, n * me.size);
      OnDevice<float> send(*me.device, mine), receive(*me.device, n);
      world->reduce_scatter(me.network(), send.view(), receive.view());
      me.network().synchronize();
      std::vector<float> expected(static_cast<std::size_t>(n));
      for (int p = 0; p < me.size; ++p) {
        for (std::int64_t i = 0; i < n; ++i) expected[static_cast<std::size_t>(i)] += value(p, me.rank * n + i);
      }
      EXPECT_EQ(receive.read(), expected) << n;
      EXPECT_EQ(send.read(), mine) << n;
    }
  });
}

template <class T>
void all_reduce_of(GpuRank& me, NcclCommunicator& world) {
  for (const std::int64_t n : counts) {
    std::vector<T> mine(static_cast<std::size_t>(n)), sum(mine), largest(static_cast<std::size_t>(n), T(-1000000));
    for (std::int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      mine[at] = static_cast<T>(value(me.rank, i));
      for (int p = 0; p < me.size; ++p) {
        sum[at] += static_cast<T>(value(p, i));
        largest[at] = std::max(largest[at], static_cast<T>(value(p, i)));
      }
    }
    OnDevice<T> summed(*me.device, mine), maximum(*me.device, mine);
    world.all_reduce(me.network(), summed.view(), Reduction::sum);
    world.all_reduce(me.network(), maximum.view(), Reduction::max);
    me.network().synchronize();
    EXPECT_EQ(summed.read(), sum) << n;
    EXPECT_EQ(maximum.read(), largest) << n;
  }
}

TEST_P(Communicators, AllReduceOfEveryType) {
  run([](GpuRank& me) {
    const auto world = me.communicator("world");
    all_reduce_of<float>(me, *world);
    all_reduce_of<double>(me, *world);
    all_reduce_of<std::int64_t>(me, *world);
  });
}

TEST_P(Communicators, BroadcastFromEveryRank) {
  run([](GpuRank& me) {
    const auto world = me.communicator("world");
    for (const std::int64_t n : counts) {
      for (int root = 0; root < me.size; ++root) {
        OnDevice<float> buffer(*me.device, values(me.rank, n));
        world->broadcast(me.network(), buffer.view(), root);
        me.network().synchronize();
        EXPECT_EQ(buffer.read(), values(root, n)) << n;
      }
    }
  });
}

// Rank r sends count(r, p, round) elements to rank p; some are 0, and sometimes all between two ranks.
std::int64_t count(int from, int to, int round) {
  return round == 0 ? 0 : (from * 3 + to * 5 + round) % 4 * 977 * round;
}

TEST_P(Communicators, AllToAllOfUnequalCounts) {
  run([](GpuRank& me) {
    const auto world = me.communicator("world");
    for (int round = 0; round < 6; ++round) {
      std::vector<std::int64_t> out, in;
      std::vector<std::uint8_t> sent, expected;
      for (int p = 0; p < me.size; ++p) {
        out.push_back(count(me.rank, p, round));
        in.push_back(count(p, me.rank, round));
        sent.insert(sent.end(), static_cast<std::size_t>(out.back()), static_cast<std::uint8_t>(me.rank * 16 + p));
        expected.insert(expected.end(), static_cast<std::size_t>(in.back()),
                        static_cast<std::uint8_t>(p * 16 + me.rank));
      }
      OnDevice<std::uint8_t> send(*me.device, sent);
      OnDevice<std::uint8_t> receive(*me.device, static_cast<std::int64_t>(expected.size()));
      world->all_to_all(me.network(), send.view(), out, receive.view(), in);
      me.network().synchronize();
      EXPECT_EQ(receive.read(), expected) << round;
    }
  });
}

TEST_P(Communicators, SumsAreTheSameBitsEveryTimeAndOnEveryRank) {
  const int size = GetParam();
  std::vector<std::vector<float>> first(static_cast<std::size_t>(size)), reduced(first);
  for (int time = 0; time < 2; ++time) {
    run([&](GpuRank& me) {
      const auto world = me.communicator("world");
      const std::int64_t n = 300007;
      OnDevice<float> all(*me.device, rough_values(me.rank, n)), send(*me.device, rough_values(me.rank, n * me.size));
      OnDevice<float> part(*me.device, n);
      for (int round = 0; round < 3; ++round) {
        all.write(rough_values(me.rank, n));
        world->all_reduce(me.network(), all.view(), Reduction::sum);
        world->reduce_scatter(me.network(), send.view(), part.view());
        me.network().synchronize();
        const auto own = static_cast<std::size_t>(me.rank);
        if (first[own].empty()) {
          first[own] = all.read();
          reduced[own] = part.read();
        }
        EXPECT_EQ(all.read(), first[own]) << round;
        EXPECT_EQ(part.read(), reduced[own]) << round;
      }
    });
    for (int rank = 1; rank < size; ++rank) EXPECT_EQ(first[static_cast<std::size_t>(rank)], first[0]);
  }
}

TEST_P(Communicators, TwoOnTwoStreamsAtOnceAndManyCallsUnderWay) {
  run([](GpuRank& me) {
    const auto shard = me.communicator("shard"), expert = me.communicator("expert");
    Stream& nvlink = me.device->stream(Resource::nvlink);
    const std::int64_t n = 100000;
    OnDevice<float> send(*me.device, std::vector<float>(static_cast<std::size_t>(n), 1.F));
    OnDevice<float> gathered(*me.device, n * me.size), exchanged(*me.device, n * me.size);
    OnDevice<double> sums(*me.device, std::vector<double>{1});
    const std::vector<std::int64_t> each(static_cast<std::size_t>(me.size), n);
    for (int i = 0; i < 300; ++i) {  // more than are looked after one by one
      shard->all_gather(me.network(), send.view(), gathered.view());
      expert->all_to_all(nvlink, gathered.view(), each, exchanged.view(), each);
      if (i % 100 == 99) shard->all_reduce(me.network(), sums.view(), Reduction::sum);
      if (i % 50 == 49) nvlink.synchronize();
    }
    me.network().synchronize();
    nvlink.synchronize();
    EXPECT_EQ(sums.read(), std::vector<double>{std::pow(me.size, 3)});
  });
}

// Straight between the GPUs, where they reach each other: as an all-to-all and a sum of what it brings.
TEST_P(Communicators, RowsAndSumsBySharedMemory) {
  run([](GpuRank& me) {
    const auto world = me.communicator("world");
    constexpr std::int64_t n = 40000, rows = 300, row = 4112;
    OnDevice<std::uint8_t> memory(*me.device, std::max(2 * n * me.size, rows * me.size * row));
    if (!world->share(me.network(), memory.view())) GTEST_SKIP() << "these GPUs do not reach each other's memory";
    const auto count = [](int from, int to) { return (from * 97 + to * 31) % rows; };
    std::vector<std::int32_t> out;
    std::vector<std::uint8_t> sent, wanted;
    for (int p = 0; p < me.size; ++p) {
      out.push_back(count(me.rank, p));
      sent.insert(sent.end(), static_cast<std::size_t>(count(me.rank, p) * row),
                  static_cast<std::uint8_t>(me.rank * 16 + p));
      wanted.insert(wanted.end(), static_cast<std::size_t>(count(p, me.rank) * row),
                    static_cast<std::uint8_t>(p * 16 + me.rank));
    }
    sent.resize(static_cast<std::size_t>(memory.count));
    wanted.resize(static_cast<std::size_t>(rows * me.size * row));
    OnDevice<std::uint8_t> send(*me.device, sent);
    OnDevice<std::int32_t> leaving(*me.device, out);
    const TensorView landing = memory.view().slice(0, rows * me.size * row).reshaped({rows * me.size, row});
    world->all_to_all_rows(me.network(), {send.view().slice(0, rows * me.size * row).reshaped({rows * me.size, row}),
                                          leaving.view().reshaped({me.size, 1}),
                                          landing,
                                          {},
                                          0,
                                          {}});
    me.network().synchronize();
    std::vector<std::uint8_t> got(wanted.size());
    me.device->read(landing, got.data());
    EXPECT_TRUE(got == wanted);
    OnDevice<float> sum(*me.device, n);
    const TensorView parts{memory.view().data, DType::bf16, Shape{me.size, n}};
    me.device->zero(me.network(), memory.view().data, memory.view().bytes());
    world->sum_parts(me.network(), parts, sum.view(), false);
    me.network().synchronize();
    EXPECT_EQ(sum.read(), std::vector<float>(n, 0.0F));
  });
}

INSTANTIATE_TEST_SUITE_P(Gpus, Communicators, ::testing::Values(1, 2, 4));

TEST(CommunicatorMisuse, IsNamedOnTheCallingThread) {
  ANANKE_NEEDS_GPUS(1);
  const auto errors = run_gpu_ranks(1, [](GpuRank& me) {
    const auto world = me.communicator("world");
    OnDevice<float> two(*me.device, 2), three(*me.device, 3);
    OnDevice<std::int32_t> whole(*me.device, 2);
    const std::vector<std::int64_t> none, one{1}, negative{-1}, many{3}, pair{1, 1};
    const std::vector<std::function<void()>> calls{
        [&] { world->all_gather(me.network(), two.view(), three.view()); },
        [&] { world->all_gather(me.network(), two.view(), whole.view()); },
        [&] { world->reduce_scatter(me.network(), three.view(), two.view()); },
        [&] { world->reduce_scatter(me.network(), two.view(), two.view()); },
        [&] { world->all_reduce(me.network(), whole.view(), Reduction::sum); },
        [&] { world->broadcast(me.network(), two.view(), 1); },
        [&] { world->all_to_all(me.network(), two.view(), none, three.view(), one); },
        [&] { world->all_to_all(me.network(), two.view(), many, three.view(), many); },
        [&] { world->all_to_all(me.network(), two.view(), negative, three.view(), negative); },
        [&] { world->all_to_all(me.network(), two.view(), pair, three.view(), pair); },
        [&] { world->all_to_all(me.network(), two.view(), one, three.view(), std::vector<std::int64_t>{2}); },
    };
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const std::string error = error_of(calls[i]);
      EXPECT_TRUE(contains(error, "internal: ") && contains(error, "communicator world")) << i << ": " << error;
    }
    world->abort();
    me.network().synchronize();
  });
  EXPECT_EQ(errors[0], "");
}

TEST(CommunicatorLoss, ARankThatLeavesEndsTheOthersWait) {
  ANANKE_NEEDS_GPUS(2);
  std::latch left(2);
  const auto start = WatchClock::now();
  const auto errors = run_gpu_ranks(2, [&](GpuRank& me) {
    auto world = me.communicator("world");
    OnDevice<float> buffer(*me.device, std::vector<float>(1000, 1.F));
    world->all_reduce(me.network(), buffer.view(), Reduction::sum);
    me.network().synchronize();
    if (me.rank == 1) {
      world->abort();
      left.arrive_and_wait();
      EXPECT_TRUE(contains(error_of([&] { world->all_reduce(me.network(), buffer.view(), Reduction::sum); }),
                           "worker_failed: communicator world of ranks 0-1, all_reduce on rank 1"));
      return;
    }
    left.arrive_and_wait();
    world->all_reduce(me.network(), buffer.view(), Reduction::sum);
    me.network().synchronize();
    ADD_FAILURE() << "the wait ended without an error";
  });
  EXPECT_TRUE(contains(errors[0], "worker_failed: communicator world of ranks 0-1, all_reduce on rank 0: rank 1 ("))
      << errors[0];
  EXPECT_EQ(errors[1], "");
  EXPECT_LT(WatchClock::now() - start, std::chrono::seconds(60));
}

TEST(CommunicatorLoss, AnAbortFromAnotherThreadEndsAWait) {
  ANANKE_NEEDS_GPUS(2);
  std::latch done(2);
  const auto errors = run_gpu_ranks(2, [&](GpuRank& me) {
    auto world = me.communicator("world");
    OnDevice<float> buffer(*me.device, std::vector<float>(1000, 1.F));
    world->all_reduce(me.network(), buffer.view(), Reduction::sum);
    me.network().synchronize();
    if (me.rank == 0) {
      std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        world->abort();
      });
      const std::string error = error_of([&] {
        world->all_reduce(me.network(), buffer.view(), Reduction::sum);
        me.network().synchronize();
      });
      other.join();
      EXPECT_TRUE(contains(error, "worker_failed: communicator world of ranks 0-1")) << error;
      EXPECT_TRUE(contains(error, "aborted")) << error;
    }
    done.arrive_and_wait();  // rank 1 never comes to the second call
  });
  EXPECT_EQ(errors[0], "");
  EXPECT_EQ(errors[1], "");
}

TEST(CommunicatorLoss, ARankThatStandsStillEndsByTheDeadline) {
  ANANKE_NEEDS_GPUS(2);
  std::latch done(2);
  const auto errors = run_gpu_ranks(
      2,
      [&](GpuRank& me) {
        auto world = me.communicator("world");
        OnDevice<float> buffer(*me.device, std::vector<float>(1000, 1.F));
        world->all_reduce(me.network(), buffer.view(), Reduction::sum);
        me.network().synchronize();
        std::string error;
        if (me.rank == 0) {
          error = error_of([&] {
            world->all_reduce(me.network(), buffer.view(), Reduction::sum);
            me.network().synchronize();
          });
          EXPECT_TRUE(contains(error, "stalled: communicator world of ranks 0-1, all_reduce on rank 0")) << error;
        }
        done.arrive_and_wait();
      },
      std::chrono::milliseconds(2000));
  EXPECT_EQ(errors[0], "");
  EXPECT_EQ(errors[1], "");
}

TEST(CommunicatorLoss, SetUpEndsWhenARankDoesNotCome) {
  ANANKE_NEEDS_GPUS(1);
  const std::unique_ptr<CudaDevice> device = testing::open_gpu(0);
  auto world = LocalWorld::create(2, std::chrono::seconds(20));
  const auto mine = world->join(0), theirs = world->join(1);
  int version = 0;
  check(ncclGetVersion(&version), "ask NCCL for its version");
  ncclUniqueId id{};
  check(ncclGetUniqueId(&id), "make an id");
  PeerCard card{this_process(), device->uuid(), version, {reinterpret_cast<const char*>(&id), sizeof id}};
  PeerCard absent{this_process(), "GPU-other", version, ""};
  absent.process.boot = "another host";
  std::thread other([&] { theirs->exchange("k/cards", std::vector<int>{0, 1}, encode(absent)); });
  CollectiveWatch watch;
  const std::string error = error_of([&] {
    NcclCommunicator::Setup setup;
    setup.name = "world";
    setup.ranks = {0, 1};
    setup.connect_deadline = std::chrono::milliseconds(1500);
    auto peers = std::make_unique<Peers>(setup.ranks, 0, card, "k", *mine);
    NcclCommunicator communicator(setup, std::move(peers), *device, watch);
  });
  other.join();
  EXPECT_TRUE(contains(error, "stalled: communicator world of ranks 0-1, its set-up on rank 0: not all ranks came"))
      << error;
}

}  // namespace
}  // namespace ananke::cuda
