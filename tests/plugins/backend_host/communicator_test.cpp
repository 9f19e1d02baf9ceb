// Misuse, lost peers, aborts, groups side by side: on every transport, ranks as threads.
#include <gtest/gtest.h>

#include <atomic>
#include <latch>

#include "tests/plugins/backend_host/ranks.h"

namespace ananke::testing {
namespace {

using std::chrono::milliseconds;

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return fmt::format("{}: {}", ananke::name_of(error.kind()), error.what());
  }
  return "";
}

TensorView flat(std::vector<float>& v) { return view_of(v.data(), Shape{static_cast<std::int64_t>(v.size())}); }

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(CommunicatorMisuse, IsNamedOnTheCallingThread) {
  const auto errors = run_ranks(2, Wire::threads, [](Rank& me) {
    auto world = me.communicator("world");
    std::vector<float> four(4), two(2), three(3);
    Stream& stream = me.compute();
    const std::vector<std::int64_t> one_each{1, 1}, too_many{3, 3}, negative{-1, 1}, single{1};
    std::vector<std::function<void()>> calls{
        [&] { world->all_gather(stream, flat(two), flat(three)); },
        [&] { world->all_gather(stream, flat(four).slice((1 - me.rank) * 2, 2), flat(four)); },
        [&] { world->reduce_scatter(stream, flat(four), flat(three)); },
        [&] { world->reduce_scatter(stream, flat(four), flat(four).slice(0, 2)); },
        [&] { world->broadcast(stream, flat(two), 2); },
        [&] { world->all_to_all(stream, flat(two), single, flat(four), one_each); },
        [&] { world->all_to_all(stream, flat(two), too_many, flat(four), one_each); },
        [&] { world->all_to_all(stream, flat(two), negative, flat(four), one_each); },
        [&] { world->all_to_all(stream, flat(four).slice(0, 2), one_each, flat(four), one_each); }};
    std::uint8_t byte = 0;
    calls.push_back([&] { world->all_reduce(stream, view_of(&byte, Shape{1}), Reduction::sum); });
    for (const auto& call : calls) EXPECT_TRUE(contains(error_of(call), "internal: ")) << error_of(call);
    EXPECT_TRUE(contains(error_of(calls[0]), "all_gather of 2 f32 into 3 f32")) << error_of(calls[0]);
    stream.synchronize();  // none of them has put work on it
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

TEST(CommunicatorMisuse, OfSharedMemoryIsNamed) {
  const auto errors = run_ranks(2, Wire::threads, [](Rank& me) {
    auto world = me.communicator("world");
    Stream& stream = me.compute();
    std::vector<std::uint8_t> rows(64), elsewhere(64);
    std::vector<std::int32_t> counts(4), three(3);
    std::vector<float> sum(4);
    std::vector<std::uint16_t> halves(8);
    ASSERT_TRUE(world->share(stream, view_of(rows.data(), Shape{64})));
    const TensorView in = view_of(rows.data(), Shape{4, 16}), out = view_of(elsewhere.data(), Shape{4, 16}),
                     two = view_of(counts.data(), Shape{2, 2});
    const auto rows_error = [&](const RowExchange& a) { return error_of([&] { world->all_to_all_rows(stream, a); }); };
    EXPECT_TRUE(contains(rows_error({out, two, in.reshaped({8, 8}), {}, 0, {}}), "a multiple of 16"));
    EXPECT_TRUE(contains(rows_error({out.reshaped({8, 8}), two, in.reshaped({8, 8}), {}, 0, {}}), "u8 [8, 8]"));
    EXPECT_TRUE(contains(rows_error({out, view_of(three.data(), Shape{3, 1}), in, {}, 0, {}}), "send_counts"));
    EXPECT_TRUE(contains(rows_error({out, two, in, {}, 2, {}}), "column 2"));
    EXPECT_TRUE(contains(rows_error({out, two, in, view_of(sum.data(), Shape{2, 2}), 0, {}}), "receive_counts"));
    EXPECT_TRUE(contains(rows_error({out, two, in, {}, 0, two}), "one i64"));
    EXPECT_TRUE(contains(rows_error({in, two, out, {}, 0, {}}), "64 bytes in memory that was not shared"));
    EXPECT_TRUE(contains(rows_error({in, two, in, {}, 0, {}}), "that it sends from"));
    const TensorView parts{halves.data(), DType::bf16, Shape{2, 4}};
    EXPECT_TRUE(contains(error_of([&] { world->sum_parts(stream, parts, flat(sum), false); }), "in shared memory"));
    stream.synchronize();   // none of them has put work on it
    counts = {3, 0, 2, 0};  // 5 of 4 rows
    world->all_to_all_rows(stream, {out, two, in, {}, 0, {}});
    EXPECT_TRUE(contains(error_of([&] { stream.synchronize(); }), "5 rows leave, where 4 have room"));
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

class Communicators : public ::testing::TestWithParam<Wire> {};

TEST_P(Communicators, RunSideBySideOnTwoStreams) {
  const auto errors = run_ranks(4, GetParam(), [](Rank& me) {
    // Axes of a 2 x 2 mesh.
    const int row = me.rank / 2, column = me.rank % 2;
    auto rows = me.communicator("shard", {row * 2, row * 2 + 1});
    auto columns = me.communicator("replicate", {column, column + 2});
    EXPECT_EQ(rows->rank(), column);
    EXPECT_EQ(columns->size(), 2);
    Stream& network = me.device.stream(Resource::network);
    std::vector<float> a(5000), b(5000);
    for (int round = 0; round < 30; ++round) {
      std::fill(a.begin(), a.end(), static_cast<float>(me.rank + round));
      std::fill(b.begin(), b.end(), static_cast<float>(me.rank * 10));
      rows->all_reduce(network, flat(a), Reduction::sum);
      columns->all_reduce(me.compute(), flat(b), Reduction::sum);
      network.synchronize();
      me.compute().synchronize();
      ASSERT_EQ(a[4999], static_cast<float>(row * 4 + 1 + 2 * round));
      ASSERT_EQ(b[4999], static_cast<float>(column * 20 + 20));
    }
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

TEST_P(Communicators, ComeAndGo) {
  const auto errors = run_ranks(3, GetParam(), [](Rank& me) {
    for (int round = 0; round < 20; ++round) {
      auto world = me.communicator(fmt::format("world/{}", round));
      std::vector<float> one{static_cast<float>(me.rank)};
      world->all_reduce(me.compute(), flat(one), Reduction::sum);
      me.compute().synchronize();
      ASSERT_EQ(one[0], 3.f);
    }
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

TEST_P(Communicators, EndWithAnErrorWhenAPeerLeaves) {
  const auto errors = run_ranks(4, GetParam(), [](Rank& me) {
    auto world = me.communicator("world");
    std::vector<float> buffer(100000, 1.f);
    world->all_reduce(me.compute(), flat(buffer), Reduction::sum);
    me.compute().synchronize();
    if (me.rank == 2) fail(ErrorKind::data, "no more rows");
    for (int i = 0; i < 3; ++i) world->all_reduce(me.compute(), flat(buffer), Reduction::sum);
    me.compute().synchronize();
  });
  EXPECT_EQ(errors[2], "data: no more rows");
  for (int rank : {0, 1, 3}) {
    const auto& error = errors[static_cast<std::size_t>(rank)];
    EXPECT_TRUE(contains(error, "worker_failed: communicator world of ranks 0-3, all_reduce on rank")) << error;
  }
}

TEST_P(Communicators, EndWithAnErrorWhenAPeersWorkThrows) {
  const auto errors = run_ranks(3, GetParam(), [](Rank& me) {
    auto world = me.communicator("world");
    std::vector<float> buffer(1000, 1.f);
    if (me.rank == 0) HostStream::of(me.compute()).enqueue([] { fail(ErrorKind::numeric, "a bad product"); });
    world->all_reduce(me.compute(), flat(buffer), Reduction::sum);
    me.compute().synchronize();
  });
  EXPECT_EQ(errors[0], "numeric: a bad product");
  for (int rank : {1, 2}) {
    const auto& error = errors[static_cast<std::size_t>(rank)];
    EXPECT_TRUE(contains(error, "worker_failed: communicator world")) << error;
  }
}

TEST_P(Communicators, AnAbortFromAnotherThreadEndsWaitingWork) {
  const auto errors = run_ranks(2, GetParam(), [](Rank& me) {
    auto world = me.communicator("world");
    std::vector<float> buffer(1000, 1.f);
    if (me.rank == 1) {  // comes only when rank 0 has given up
      while (!contains(error_of([&] {
                         world->all_reduce(me.compute(), flat(buffer), Reduction::sum);
                         me.compute().synchronize();
                       }),
                       "worker_failed")) {
      }
      return;
    }
    world->all_reduce(me.compute(), flat(buffer), Reduction::sum);
    world->all_reduce(me.compute(), flat(buffer), Reduction::sum);
    std::thread other([&] {
      std::this_thread::sleep_for(milliseconds(30));
      world->abort();
      world->abort();
    });
    const auto error = error_of([&] {
      for (;;) {
        world->all_reduce(me.compute(), flat(buffer), Reduction::sum);
        me.compute().synchronize();
      }
    });
    other.join();
    EXPECT_TRUE(contains(error, "worker_failed: communicator world")) << error;
    EXPECT_TRUE(contains(error_of([&] { me.compute().synchronize(); }), "worker_failed"));
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

// What each of `ranks` ranks is told when rank 1 does not come.
std::vector<std::string> without_rank_1(int ranks, Wire wire) {
  std::latch over(ranks);
  return run_ranks(
      ranks, wire,
      [&](Rank& me) {
        auto world = me.communicator("world");
        std::vector<float> buffer(100, 1.f);
        if (me.rank == 1) {
          over.arrive_and_wait();
          return;
        }
        const auto error = error_of([&] {
          world->all_reduce(me.compute(), flat(buffer), Reduction::sum);
          me.compute().synchronize();
        });
        over.arrive_and_wait();
        fail(ErrorKind::stalled, "{}", error);
      },
      milliseconds(300));
}

TEST_P(Communicators, ADeadlinePassesWhenAPeerStalls) {
  const auto two = without_rank_1(2, GetParam());
  EXPECT_TRUE(contains(two[0], "stalled: communicator world of ranks 0-1, all_reduce on rank 0")) << two[0];
  EXPECT_TRUE(contains(two[0], "rank 1 did not come within 300 ms")) << two[0];
  EXPECT_EQ(two[1], "");
  // Of three the first to give up names who is late, which may be more than one; with Gloo the other may see only that
  // the first is gone.
  const auto three = without_rank_1(3, GetParam());
  EXPECT_EQ(three[1], "");
  int named = 0;
  for (int rank : {0, 2}) {
    const auto& error = three[static_cast<std::size_t>(rank)];
    EXPECT_TRUE(contains(error, "communicator world of ranks 0-2, all_reduce on rank")) << error;
    if (contains(error, "stalled: communicator") && contains(error, " did not come within 300 ms")) ++named;
  }
  EXPECT_GE(named, GetParam() == Wire::gloo ? 1 : 2) << three[0] << "\n" << three[2];
}

TEST_P(Communicators, WorkThatOutlivesItsCommunicatorFails) {
  const auto errors = run_ranks(2, GetParam(), [](Rank& me) {
    std::vector<float> buffer(1000, 1.f);
    {
      auto world = me.communicator("world");
      if (me.rank == 0) world->all_reduce(me.compute(), flat(buffer), Reduction::sum);
    }
    me.compute().synchronize();
  });
  EXPECT_TRUE(contains(errors[0], "worker_failed: communicator world")) << errors[0];
  EXPECT_EQ(errors[1], "");
}

INSTANTIATE_TEST_SUITE_P(, Communicators, ::testing::Values(Wire::threads, Wire::shared, Wire::gloo),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(ThreadCommunicators, SayWhenRanksMakeDifferentCalls) {
  const auto errors = run_ranks(2, Wire::threads, [](Rank& me) {
    auto world = me.communicator("world");
    std::vector<float> buffer(me.rank == 0 ? 10 : 11);
    world->all_reduce(me.compute(), flat(buffer), Reduction::sum);
    me.compute().synchronize();
  });
  for (const auto& error : errors) {
    EXPECT_TRUE(contains(error, "internal: communicator world")) << error;
    EXPECT_TRUE(contains(error, "the ranks made different calls")) << error;
  }
}

TEST(CommunicatorOptions, ADelayIsSleptInEveryCollectiveOfSeveralRanks) {
  const auto errors = run_ranks(2, Wire::threads, [](Rank& me) {
    me.delay = milliseconds(20);
    auto both = me.communicator("both");
    std::vector<float> buffer(3);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 3; ++i) both->all_reduce(me.compute(), flat(buffer), Reduction::sum);
    me.compute().synchronize();
    EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(60));
    me.delay = std::chrono::hours(1);
    auto never = me.communicator("never", {me.rank});
    never->all_reduce(me.compute(), flat(buffer), Reduction::sum);
    me.compute().synchronize();
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace ananke::testing
