#include "runtime/comm/rank_processes.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "runtime/base/error.h"
#include "tests/refusal.h"

namespace ananke {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;

TEST(RankProcesses, ThrowWhatARankFailsWithAndKillTheOthers) {
  const auto work = [](int rank, Rendezvous& ranks) {
    if (rank == 2) fail(ErrorKind::data, "a file that is not there");
    ranks.exchange("all", {}, "");
  };
  EXPECT_ERROR(run_rank_processes(4, minutes(5), work), ErrorKind::data, "rank 2: a file that is not there");
}

TEST(RankProcesses, NameTheSignalThatEndsARank) {
  const auto work = [](int rank, Rendezvous& ranks) {
    if (rank == 1) raise(SIGKILL);
    ranks.exchange("all", {}, "");
  };
  EXPECT_ERROR(run_rank_processes(2, minutes(5), work), ErrorKind::worker_failed,
               "rank 1 was ended by signal 9 (Killed)");
}

TEST(RankProcesses, SayWhoDidNotCome) {
  const auto work = [](int rank, Rendezvous& ranks) {
    const int members[] = {0, 1};
    if (rank == 0) ranks.exchange("both", members, "");
  };
  EXPECT_ERROR(run_rank_processes(2, milliseconds(20), work), ErrorKind::stalled,
               "rank 0: exchange both: rank 1 did not come within 20 ms");
}

TEST(RankProcesses, ExchangeAndShareNumbers) {
  const SharedFloats numbers(8);
  const pid_t parent = getpid();
  run_rank_processes(4, minutes(5), [&](int rank, Rendezvous& ranks) {
    if (getpid() == parent) fail(ErrorKind::internal, "rank {} is no process of its own", rank);
    const int odd[] = {1, 3};
    const auto all = ranks.exchange("all", {}, std::to_string(rank));
    numbers.all()[static_cast<std::size_t>(rank)] = std::stof(all[3]) * 10 + std::stof(all[1]);
    if (rank % 2 == 0) return;
    const auto two = ranks.exchange("odd", odd, std::string("\0x", 2) + std::to_string(rank));
    numbers.all()[4 + static_cast<std::size_t>(rank)] = std::stof(two[0].substr(2)) + std::stof(two[1].substr(2));
  });
  const std::vector<float> wanted{31, 31, 31, 31, 0, 4, 0, 4};
  EXPECT_EQ(std::vector<float>(numbers.all().begin(), numbers.all().end()), wanted);
}

}  // namespace
}  // namespace ananke
