#include "runtime/comm/local_rendezvous.h"

#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/comm/exchange_table.h"
#include "tests/patience.h"

namespace ananke {
namespace {

using std::chrono::milliseconds;

// Runs `body(rank, rendezvous)` as one thread per rank; returns what each threw (empty: nothing).
template <class Body>
std::vector<std::string> as_ranks(int size, milliseconds deadline, Body body) {
  auto world = LocalWorld::create(size, deadline);
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank, *world->join(rank));
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] = fmt::format("{}: {}", name_of(error.kind()), error.what());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

TEST(LocalRendezvous, NamesTheRanksThatDidNotComeAlsoToOneThatComesTooLate) {
  std::latch over(1);
  auto errors = as_ranks(5, milliseconds(50), [&](int rank, Rendezvous& r) {
    if (rank == 0) over.wait();
    try {
      if (rank == 0 || rank == 3) r.exchange("mesh/0", {}, "x");
    } catch (...) {
      if (rank == 3) over.count_down();
      throw;
    }
  });
  for (int rank : {0, 3}) {
    EXPECT_NE(errors[static_cast<std::size_t>(rank)].find("stalled: exchange 'mesh/0' of ranks 0-4: ranks 0-2, 4 did"),
              std::string::npos)
        << errors[static_cast<std::size_t>(rank)];
  }
  EXPECT_EQ(errors[1], "");
}

TEST(LocalRendezvous, RefusesAKeyUsedTwiceAndMembersThatDiffer) {
  auto errors = as_ranks(1, test_patience, [](int, Rendezvous& r) {
    r.exchange("a", {}, "x");
    r.exchange("a", {}, "x");
  });
  EXPECT_NE(errors[0].find("internal: rank 0 calls exchange 'a' twice"), std::string::npos) << errors[0];
  errors = as_ranks(3, test_patience, [](int rank, Rendezvous& r) {
    const std::vector<int> pair{0, 1};
    r.exchange("b", rank == 0 ? std::span<const int>(pair) : std::span<const int>(), "x");
  });
  for (const auto& error : errors) EXPECT_NE(error.find("calls it for"), std::string::npos) << error;
  errors = as_ranks(3, test_patience, [](int rank, Rendezvous& r) {
    const std::vector<int> others{0, 1};
    if (rank == 2) r.exchange("c", others, "x");
  });
  EXPECT_NE(errors[2].find("without being one of them"), std::string::npos) << errors[2];
}

TEST(LocalRendezvous, AbandonEndsEveryWait) {
  auto world = LocalWorld::create(2, test_patience);
  auto zero = world->join(0);
  std::thread other([&] { world->abandon("rank 1 failed: no tokens"); });
  EXPECT_THROW(zero->exchange("k", {}, ""), Error);
  other.join();
  EXPECT_THROW(world->join(0), Error);
  EXPECT_THROW(world->join(2), Error);
}

TEST(LocalRendezvous, GivesEveryMemberAllBlobsInOrder) {
  auto errors = as_ranks(6, test_patience, [](int rank, Rendezvous& r) {
    for (int round = 0; round < 20; ++round) {
      auto all = r.exchange(fmt::format("all/{}", round), {}, std::to_string(rank));
      ANANKE_CHECK(all.size() == 6 && all[5] == "5" && all[0] == "0", "{}", fmt::join(all, ","));
      // Disjoint groups may use one key.
      const std::vector<int> group = rank % 2 == 0 ? std::vector<int>{0, 2, 4} : std::vector<int>{1, 3, 5};
      auto some = r.exchange(fmt::format("half/{}", round), group, fmt::format("{}{}", round, rank));
      ANANKE_CHECK(some.size() == 3 && some[1] == fmt::format("{}{}", round, group[1]), "{}", fmt::join(some, ","));
    }
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

TEST(FormatRanks, FoldsNeighbours) {
  EXPECT_EQ(format_ranks(std::vector<int>{3}), "rank 3");
  EXPECT_EQ(format_ranks(std::vector<int>{0, 1, 2, 5}), "ranks 0-2, 5");
}

}  // namespace
}  // namespace ananke
