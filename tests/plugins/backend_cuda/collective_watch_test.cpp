// When the watch over collectives gives up, and that it looks at what it was given only.
#include "plugins/backend_cuda/collective_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>

namespace ananke::cuda {
namespace {

using std::chrono::milliseconds;
using Verdict = Patience::Verdict;

const WatchClock::time_point start = WatchClock::time_point(std::chrono::hours(1));
WatchClock::time_point at(int ms) { return start + milliseconds(ms); }

TEST(Patience, WaitsForEverWhenNothingIsUnderWay) {
  Patience patience({milliseconds(100), milliseconds(10)});
  for (int t = 0; t < 10000; t += 1000) EXPECT_EQ(patience.judge(5, 5, true, at(t)), Verdict::wait);
}

TEST(Patience, CountsTheDeadlineFromThePieceBefore) {
  Patience patience({milliseconds(100), milliseconds(10)});
  EXPECT_EQ(patience.judge(0, 3, false, at(0)), Verdict::wait);
  EXPECT_EQ(patience.judge(0, 3, false, at(99)), Verdict::wait);
  EXPECT_EQ(patience.judge(1, 3, false, at(99)), Verdict::wait);
  EXPECT_EQ(patience.judge(1, 3, false, at(198)), Verdict::wait);
  EXPECT_EQ(patience.judge(1, 3, false, at(199)), Verdict::stalled);
}

TEST(Patience, StartsAnewAfterARest) {
  Patience patience({milliseconds(100), milliseconds(10)});
  EXPECT_EQ(patience.judge(0, 1, false, at(0)), Verdict::wait);
  EXPECT_EQ(patience.judge(1, 1, false, at(50)), Verdict::wait);
  EXPECT_EQ(patience.judge(1, 2, false, at(5000)), Verdict::wait);
  EXPECT_EQ(patience.judge(1, 2, false, at(5100)), Verdict::stalled);
}

TEST(Patience, APeerThatIsGoneMayHaveDoneItsPart) {
  Patience patience({milliseconds(1000), milliseconds(10)});
  EXPECT_EQ(patience.judge(0, 1, true, at(0)), Verdict::wait);
  EXPECT_EQ(patience.judge(0, 1, true, at(9)), Verdict::wait);
  EXPECT_EQ(patience.judge(1, 1, true, at(10)), Verdict::wait);
  EXPECT_EQ(patience.judge(1, 2, true, at(100)), Verdict::wait);
  EXPECT_EQ(patience.judge(1, 2, true, at(110)), Verdict::lost);
}

class Counted final : public Watched {
 public:
  void look(WatchClock::time_point) noexcept override { ++looks; }
  std::atomic<int> looks = 0;
};

TEST(CollectiveWatch, LooksUntilItIsToldNotTo) {
  CollectiveWatch watch(milliseconds(1));
  Counted one, other;
  watch.add(one);
  watch.add(other);
  while (one.looks < 3 || other.looks < 3) std::this_thread::yield();
  watch.remove(one);
  const int seen = one.looks, others = other.looks;
  while (other.looks < others + 3) std::this_thread::yield();
  EXPECT_EQ(one.looks, seen);
  watch.remove(other);
}

TEST(CollectiveWatch, DoesNotWaitForItsPauseToEnd) {
  CollectiveWatch watch(std::chrono::hours(1));
  Counted one;
  watch.add(one);
  while (one.looks < 1) std::this_thread::yield();
  watch.remove(one);
}

}  // namespace
}  // namespace ananke::cuda
