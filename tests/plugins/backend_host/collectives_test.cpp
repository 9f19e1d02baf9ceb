// Every collective against a plain computation, on every transport, ranks as threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>

#include "tests/plugins/backend_host/ranks.h"

namespace ananke::testing {
namespace {

constexpr std::int64_t counts[] = {0, 1, 7, 1031, 100003};

// Values whose sum depends on the order it is taken in.
float value(int rank, std::int64_t i) {
  return std::sin(static_cast<float>(rank * 7919 + i % 100) + 0.5f) *
         std::ldexp(1.f, static_cast<int>((rank * 5 + i) % 13));
}

std::vector<float> values(int rank, std::int64_t count) {
  std::vector<float> v(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) v[static_cast<std::size_t>(i)] = value(rank, i);
  return v;
}

float sum_in_rank_order(int size, std::int64_t i) {
  float sum = value(0, i);
  for (int p = 1; p < size; ++p) sum += value(p, i);
  return sum;
}

TensorView flat(std::vector<float>& v) { return view_of(v.data(), Shape{static_cast<std::int64_t>(v.size())}); }

class Collectives : public ::testing::TestWithParam<std::tuple<Wire, int>> {
 protected:
  void run(const std::function<void(Rank&)>& body) {
    auto [wire, size] = GetParam();
    const auto errors = run_ranks(size, wire, body);
    for (const auto& error : errors) EXPECT_EQ(error, "");
  }
};

TEST_P(Collectives, AllGather) {
  run([](Rank& me) {
    auto world = me.communicator("world");
    for (std::int64_t n : counts) {
      auto send = values(me.rank, n);
      std::vector<float> apart(static_cast<std::size_t>(n * me.size), -1), in_place(apart);
      std::copy(send.begin(), send.end(), in_place.begin() + me.rank * n);
      world->all_gather(me.compute(), flat(send), flat(apart));
      world->all_gather(me.compute(), flat(in_place).slice(me.rank * n, n), flat(in_place));
      me.compute().synchronize();
      std::vector<float> expected;
      for (int p = 0; p < me.size; ++p) {
        auto part = values(p, n);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      ASSERT_TRUE(apart == expected) << n;
      ASSERT_TRUE(in_place == expected) << n;
    }
    std::uint8_t byte = static_cast<std::uint8_t>(me.rank + 40);
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(me.size));
    world->all_gather(me.compute(), view_of(&byte, Shape{1}), view_of(bytes.data(), Shape{me.size}));
    me.compute().synchronize();
    for (int p = 0; p < me.size; ++p) ASSERT_EQ(bytes[static_cast<std::size_t>(p)], p + 40);
  });
}

TEST_P(Collectives, ReduceScatterSumsInRankOrder) {
  run([](Rank& me) {
    auto world = me.communicator("world");
    for (std::int64_t n : counts) {
      auto send = values(me.rank, n * me.size);
      const auto before = send;
      std::vector<float> receive(static_cast<std::size_t>(n), -1);
      world->reduce_scatter(me.compute(), flat(send), flat(receive));
      me.compute().synchronize();
      ASSERT_TRUE(send == before);
      for (std::int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(receive[static_cast<std::size_t>(i)], sum_in_rank_order(me.size, me.rank * n + i)) << n << " " << i;
      }
    }
  });
}

TEST_P(Collectives, AllReduceSumsInRankOrder) {
  run([](Rank& me) {
    auto world = me.communicator("world");
    for (std::int64_t n : counts) {
      auto buffer = values(me.rank, n);
      world->all_reduce(me.compute(), flat(buffer), Reduction::sum);
      me.compute().synchronize();
      for (std::int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(buffer[static_cast<std::size_t>(i)], sum_in_rank_order(me.size, i)) << n << " " << i;
      }
    }
  });
}

TEST_P(Collectives, AllReduceTakesOtherTypesAndMaxima) {
  run([](Rank& me) {
    auto world = me.communicator("world");
    for (std::int64_t n : counts) {
      const auto size = static_cast<std::size_t>(n);
      std::vector<double> doubles(size), largest(size);
      std::vector<std::int64_t> integers(size);
      for (std::size_t i = 0; i < size; ++i) {
        doubles[i] = 1.0 / (me.rank + 1.0 + static_cast<double>(i));
        largest[i] = (me.rank * 7 + static_cast<int>(i)) % 5;
        integers[i] = (std::int64_t{1} << 60) + me.rank;
      }
      world->all_reduce(me.compute(), view_of(doubles.data(), Shape{n}), Reduction::sum);
      world->all_reduce(me.compute(), view_of(largest.data(), Shape{n}), Reduction::max);
      world->all_reduce(me.compute(), view_of(integers.data(), Shape{n}), Reduction::sum);
      me.compute().synchronize();
      for (std::size_t i = 0; i < size; ++i) {
        double sum = 0, best = 0;
        std::int64_t whole = 0;
        for (int p = 0; p < me.size; ++p) {
          sum += 1.0 / (p + 1.0 + static_cast<double>(i));
          best = std::max<double>(best, (p * 7 + static_cast<int>(i)) % 5);
          whole += (std::int64_t{1} << 60) + p;
        }
        ASSERT_EQ(doubles[i], sum);
        ASSERT_EQ(largest[i], best);
        ASSERT_EQ(integers[i], whole);
      }
    }
  });
}

TEST_P(Collectives, AMaximumKeepsNaN) {
  run([](Rank& me) {
    auto world = me.communicator("world");
    std::vector<float> buffer{static_cast<float>(me.rank),
                              me.rank == me.size / 2 ? std::numeric_limits<float>::quiet_NaN() : 1.f};
    world->all_reduce(me.compute(), flat(buffer), Reduction::max);
    me.compute().synchronize();
    EXPECT_EQ(buffer[0], static_cast<float>(me.size - 1));
    EXPECT_TRUE(std::isnan(buffer[1]));
  });
}

TEST_P(Collectives, BroadcastFromEveryRoot) {
  run([](Rank& me) {
    auto world = me.communicator("world");
    for (std::int64_t n : counts) {
      for (int root = 0; root < me.size; ++root) {
        auto buffer = values(me.rank, n);
        world->broadcast(me.compute(), flat(buffer), root);
        me.compute().synchronize();
        ASSERT_TRUE(buffer == values(root, n)) << n << " from " << root;
      }
    }
  });
}

TEST_P(Collectives, AllToAllWithZeroAndUnevenCounts) {
  run([](Rank& me) {
    auto world = me.communicator("world");
    for (std::int64_t unit : counts) {
      std::vector<std::int64_t> out, in;
      for (int p = 0; p < me.size; ++p) {
        out.push_back(unit * ((me.rank + 2 * p) % 3));
        in.push_back(unit * ((p + 2 * me.rank) % 3));
      }
      std::vector<std::int32_t> send, expected;
      for (int p = 0; p < me.size; ++p)
        send.insert(send.end(), static_cast<std::size_t>(out[static_cast<std::size_t>(p)]), me.rank * 100 + p);
      for (int p = 0; p < me.size; ++p)
        expected.insert(expected.end(), static_cast<std::size_t>(in[static_cast<std::size_t>(p)]), p * 100 + me.rank);
      std::vector<std::int32_t> receive(expected.size(), -1);
      world->all_to_all(me.compute(), view_of(send.data(), Shape{static_cast<std::int64_t>(send.size())}), out,
                        view_of(receive.data(), Shape{static_cast<std::int64_t>(receive.size())}), in);
      me.compute().synchronize();
      ASSERT_TRUE(receive == expected) << unit;
    }
  });
}

TEST_P(Collectives, ARankMayHaveNothingToExchange) {
  run([](Rank& me) {
    auto world = me.communicator("world");
    const auto size = static_cast<std::size_t>(me.size);
    for (int round = 0; round < 20; ++round) {  // rank 0 sends one element to each other rank, nobody else anything
      std::vector<std::int64_t> out(size, me.rank == 0 ? 1 : 0), in(size, 0);
      out[0] = 0;
      if (me.rank != 0) in[0] = 1;
      std::vector<float> send(size, static_cast<float>(round)), receive(size, -1);
      world->all_to_all(me.compute(), flat(send), out, flat(receive), in);
      me.compute().synchronize();
      ASSERT_EQ(receive[0], me.rank == 0 ? -1.f : static_cast<float>(round));
    }
  });
}

std::uint8_t row_byte(int from, int to, std::int64_t row) {
  return static_cast<std::uint8_t>(from * 50 + to * 7 + row % 5);
}

// Counts lie in a column of a matrix; what is behind the rows that came stays.
TEST_P(Collectives, RowsByCountsThatNoHostKnows) {
  run([](Rank& me) {
    auto world = me.communicator("world");
    constexpr std::int64_t row = 48, columns = 3, column = 1;
    const std::int64_t ranks = me.size;
    std::vector<std::uint8_t> send, receive(static_cast<std::size_t>(40 * ranks * row), 0xee);
    const TensorView landing = view_of(receive.data(), Shape{40 * ranks, row});
    ASSERT_EQ(world->share(me.compute(), landing), me.size > 1);
    if (me.size == 1) return;
    std::int64_t received = 1000, wanted_bytes = 1000;
    for (std::int64_t round = 0; round < 6; ++round) {
      const auto count = [&](std::int64_t from, std::int64_t to) { return (from * 5 + to * 3) * round % 13; };
      std::vector<std::int32_t> out(static_cast<std::size_t>(ranks * columns), 77), in(out), wanted_in(out);
      std::vector<std::uint8_t> expected;
      send.clear();
      for (int p = 0; p < me.size; ++p) {
        const auto place = static_cast<std::size_t>(p * columns + column);
        out[place] = static_cast<std::int32_t>(count(me.rank, p));
        wanted_in[place] = static_cast<std::int32_t>(count(p, me.rank));
        for (std::int64_t i = 0; i < count(me.rank, p); ++i) send.insert(send.end(), row, row_byte(me.rank, p, i));
        for (std::int64_t i = 0; i < count(p, me.rank); ++i)
          expected.insert(expected.end(), row, row_byte(p, me.rank, i));
        if (p != me.rank) wanted_bytes += count(p, me.rank) * row;
      }
      const Shape shape{ranks, columns};
      std::fill(receive.begin(), receive.end(), std::uint8_t{0xee});
      world->all_to_all_rows(
          me.compute(),
          {view_of(send.data(), Shape{static_cast<std::int64_t>(send.size()) / row, row}), view_of(out.data(), shape),
           landing, round % 2 == 0 ? view_of(in.data(), shape) : TensorView{}, column, view_of(&received, Shape{1})});
      me.compute().synchronize();
      expected.resize(receive.size(), 0xee);
      ASSERT_TRUE(receive == expected) << round;
      if (round % 2 == 0) {
        EXPECT_EQ(in, wanted_in) << round;
      }
      EXPECT_EQ(received, wanted_bytes) << round;
    }
  });
}

std::uint16_t bf16_bits(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16);
}

// As an all-to-all and a sum at the end: rounded in the order of the ranks.
TEST_P(Collectives, SumsPartsOfBf16InRankOrder) {
  run([](Rank& me) {
    auto world = me.communicator("world");
    const auto term = [](std::int64_t rank, std::int64_t i) {  // exact in bf16; sums of them are not in f32
      return std::ldexp(static_cast<float>(1 + (rank * 37 + i * 11) % 127), static_cast<int>((rank * 13 + i) % 30));
    };
    for (const std::int64_t n : counts) {
      std::vector<std::uint16_t> parts;
      for (std::int64_t i = 0; i < me.size * n; ++i) parts.push_back(bf16_bits(term(me.rank, i)));
      const TensorView all{parts.data(), DType::bf16, Shape{me.size, n}};
      ASSERT_EQ(world->share(me.compute(), all), me.size > 1);
      if (me.size == 1) return;
      for (const bool add : {false, true}) {
        std::vector<float> sum(static_cast<std::size_t>(n), 3.0f), wanted(sum);
        for (std::int64_t i = 0; i < n; ++i) {
          float total = 0;
          for (int p = 0; p < me.size; ++p) total += term(p, me.rank * n + i);
          float& out = wanted[static_cast<std::size_t>(i)];
          out = add ? out + total : total;
        }
        world->sum_parts(me.compute(), all, flat(sum), add);
        me.compute().synchronize();
        ASSERT_TRUE(sum == wanted) << n << add;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(, Collectives,
                         ::testing::Combine(::testing::Values(Wire::threads, Wire::shared, Wire::gloo),
                                            ::testing::Range(1, 6)),
                         [](const auto& info) {
                           return fmt::format("{}_{}", name_of(std::get<0>(info.param)), std::get<1>(info.param));
                         });

}  // namespace
}  // namespace ananke::testing
