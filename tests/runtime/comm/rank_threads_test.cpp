#include "runtime/comm/rank_threads.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>

#include "runtime/base/error.h"
#include "tests/refusal.h"

namespace ananke {
namespace {

using std::chrono::seconds;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they take far more address space
// In a process of its own: the limit is below what so many threads' stacks take.
[[noreturn]] void run_more_than_fit() {
  const rlimit limit{rlim_t{1} << 30, rlim_t{1} << 30};
  setrlimit(RLIMIT_AS, &limit);
  try {
    run_rank_threads(4000, seconds(30), [](int, Rendezvous& ranks) { ranks.exchange("all", {}, ""); });
  } catch (const Error& error) {
    std::fprintf(stderr, "%s: %s\n", name_of(error.kind()), error.what());
  }
  _exit(0);
}

TEST(RankThreads, TellThatTheMachineGivesNoThread) {
  EXPECT_EXIT(run_more_than_fit(), ::testing::ExitedWithCode(0),
              "resource: cannot start rank .* of 4000 as a thread.*use fewer ranks");
}
#endif

TEST(RankThreads, ThrowTheFirstCauseAndNotTheLossOfAPeer) {
  const auto work = [](int rank, Rendezvous& ranks) {
    if (rank == 2) fail(ErrorKind::data, "rank 2's own reason");
    ranks.exchange("all", {}, "");
  };
  EXPECT_ERROR(run_rank_threads(4, seconds(30), work), ErrorKind::data, "rank 2's own reason");
}

}  // namespace
}  // namespace ananke
