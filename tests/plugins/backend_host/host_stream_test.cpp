#include "plugins/backend_host/host_stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <thread>
#include <vector>

#include "runtime/base/error.h"

namespace ananke {
namespace {

class ForeignEvent final : public Event {
 public:
  bool reached() const override { return true; }
  void synchronize() const override {}
};
class ForeignStream final : public Stream {
 public:
  void record(Event&) override {}
  void wait(const Event&) override {}
  void synchronize() override {}
};

std::string error_of(Stream& stream) {
  try {
    stream.synchronize();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(HostStream, RefusesStreamsAndEventsOfAnotherBackend) {
  HostStream stream("compute");
  ForeignEvent event;
  ForeignStream other;
  EXPECT_THROW(stream.record(event), Error);
  EXPECT_THROW(stream.wait(event), Error);
  EXPECT_THROW(HostStream::of(other), Error);
  EXPECT_EQ(&HostStream::of(static_cast<Stream&>(stream)), &stream);
}

TEST(HostStream, KeepsTheFirstExceptionSkipsTheRestAndStillReachesEvents) {
  HostStream stream("compute");
  HostEvent before, after;
  int ran = 0;
  stream.enqueue([&] { ++ran; });
  stream.record(before);
  stream.enqueue([] { fail(ErrorKind::data, "first"); });
  stream.enqueue([] { fail(ErrorKind::data, "second"); });
  stream.enqueue([&] { ++ran; });
  stream.record(after);
  after.synchronize();
  EXPECT_TRUE(before.reached());
  EXPECT_TRUE(after.reached());
  EXPECT_EQ(error_of(stream), "first");
  stream.enqueue([&] { ++ran; });
  EXPECT_EQ(error_of(stream), "first");
  EXPECT_EQ(ran, 1);
}

TEST(HostStream, PassesAFailureOnToStreamsThatWaitForItOnly) {
  HostStream network("network"), compute("compute"), other("other");
  HostEvent good, bad;
  int computed = 0, others = 0;
  network.record(good);
  network.enqueue([] { fail(ErrorKind::worker_failed, "rank 3 is gone"); });
  network.record(bad);
  compute.wait(bad);
  compute.enqueue([&] { ++computed; });
  other.wait(good);
  other.enqueue([&] { ++others; });
  EXPECT_EQ(error_of(compute), "rank 3 is gone");
  EXPECT_EQ(error_of(other), "");
  EXPECT_EQ(computed, 0);
  EXPECT_EQ(others, 1);
}

TEST(HostStream, RunsWorkInOrder) {
  HostStream stream("compute");
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) stream.enqueue([&order, i] { order.push_back(i); });
  stream.synchronize();
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(HostStream, EventsOrderStreamsAndMayBeRecordedAgain) {
  HostStream first("first"), second("second");
  HostEvent produced, consumed;
  long value = 0, sum = 0;
  for (int i = 1; i <= 500; ++i) {
    first.wait(consumed);
    first.enqueue([&, i] { value = i; });
    first.record(produced);
    second.wait(produced);
    second.enqueue([&] { sum += value; });
    second.record(consumed);
  }
  second.synchronize();
  EXPECT_EQ(sum, 500 * 501 / 2);
}

TEST(HostStream, AnEventIsReachedOnlyAfterItsPoint) {
  HostStream stream("compute");
  HostEvent never, early, late;
  std::latch gate(1);
  stream.record(early);
  stream.enqueue([&] { gate.wait(); });
  stream.record(late);
  EXPECT_TRUE(never.reached());
  never.synchronize();
  EXPECT_TRUE(early.reached());
  EXPECT_FALSE(late.reached());
  gate.count_down();
  late.synchronize();
  EXPECT_TRUE(late.reached());
}

TEST(HostStream, TimersSayHowLongWorkBetweenThemTook) {
  HostStream stream("compute");
  HostEvent begin(true), end(true), plain;
  std::latch gate(1);
  stream.record(plain);
  stream.record(begin);
  stream.enqueue([&] { gate.wait(); });
  stream.enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  stream.record(end);
  EXPECT_FALSE(end.seconds_since(begin)) << "not reached";
  gate.count_down();
  end.synchronize();
  EXPECT_GE(end.seconds_since(begin).value(), 0.02);
  EXPECT_FALSE(end.seconds_since(plain));
  EXPECT_THROW(end.seconds_since(ForeignEvent()), Error);
}

TEST(HostStream, FinishesItsWorkBeforeItIsDestroyed) {
  std::atomic<int> ran = 0;
  HostEvent last;
  {
    HostStream stream("compute");
    for (int i = 0; i < 100; ++i) stream.enqueue([&] { ++ran; });
    stream.record(last);
  }
  EXPECT_EQ(ran, 100);
  EXPECT_TRUE(last.reached());
}

}  // namespace
}  // namespace ananke
