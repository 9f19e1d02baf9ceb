// Device, streams, events, copies and reads of one GPU.
#include <algorithm>
#include <atomic>

#include "plugins/backend_cuda/failure.h"
#include "tests/plugins/backend_cuda/gpu.h"

namespace ananke::cuda {
namespace {

using testing::error_of;
using testing::OnDevice;

constexpr std::size_t mib = std::size_t{1} << 20;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ANANKE_NEEDS_GPUS(1);
    device_ = testing::open_gpu(0);
  }
  CudaDevice& device() { return *device_; }
  Stream& stream(Resource resource) { return device_->stream(resource); }
  std::unique_ptr<CudaDevice> device_;
};

// Work that keeps a stream busy for some milliseconds: copies to and fro.
void keep_busy(Device& device, Stream& stream, Buffer& a, Buffer& b, int times) {
  for (int i = 0; i < times; ++i) {
    device.copy(stream, b.data(), a.data(), a.bytes());
    device.copy(stream, a.data(), b.data(), a.bytes());
  }
}

TEST_F(CudaDeviceTest, SaysWhatItIs) {
  const std::string text = device().description();
  EXPECT_TRUE(contains(text, "GPU-")) << text;
  EXPECT_TRUE(contains(text, "SMs")) << text;
  EXPECT_GE(device().facts().major, 9);
  EXPECT_GT(device().facts().multiprocessors, 0);
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "ask for the free memory");
  std::printf("%s\ncontext and modules take %zu MiB, with what else is on the device\n", text.c_str(),
              (total - free) / mib);
}

TEST_F(CudaDeviceTest, RefusesHostWorkAndForeignStreamsAndEvents) {
  const std::string error = error_of([&] { stream(Resource::compute).run_on_host([] {}); });
  EXPECT_TRUE(contains(error, "config: this job's backend cannot run a plugin's host work on device tensors")) << error;
  class Foreign final : public Stream {
    void record(Event&) override {}
    void wait(const Event&) override {}
    void synchronize() override {}
  } foreign;
  class ForeignEvent final : public Event {
    bool reached() const override { return true; }
    void synchronize() const override {}
  } event;
  EXPECT_TRUE(contains(error_of([&] { device().zero(foreign, nullptr, 0); }), "a stream of another backend"));
  EXPECT_TRUE(contains(error_of([&] { raw(foreign); }), "a stream of another backend"));
  EXPECT_TRUE(contains(error_of([&] { stream(Resource::compute).record(event); }), "an event of another backend"));
}

TEST_F(CudaDeviceTest, TimersSayHowLongWorkBetweenThemTook) {
  Buffer a = device().memory().allocate(64 * mib, "test"), b = device().memory().allocate(64 * mib, "test");
  const auto never = device().make_timer(), begin = device().make_timer(), end = device().make_timer(),
             plain = device().make_event();
  Stream& compute = stream(Resource::compute);
  compute.record(*plain);
  compute.record(*begin);
  keep_busy(device(), compute, a, b, 50);
  compute.record(*end);
  compute.synchronize();
  EXPECT_GT(end->seconds_since(*begin).value(), 1e-4);
  EXPECT_FALSE(end->seconds_since(*plain));
  EXPECT_FALSE(end->seconds_since(*never)) << "never recorded";
  EXPECT_GE(device().numa_node(), -1);
}

TEST_F(CudaDeviceTest, RefusesMoreMemoryThanThereIsWithTheNumbers) {
  const std::string error = error_of([&] { device().memory().allocate(std::size_t{1} << 45, "weights"); });
  EXPECT_TRUE(contains(error, "resource: cannot allocate 32.0 TiB of device memory")) << error;
  EXPECT_TRUE(contains(error, "CUDA device 0 has")) << error;
  EXPECT_EQ(device().memory_numbers().retries, 1u);
  OnDevice<float> still_good(device(), std::vector<float>{1, 2, 3});
  EXPECT_EQ(still_good.read(), (std::vector<float>{1, 2, 3}));
}

TEST_F(CudaDeviceTest, RefusesAnEnvironmentInWhichStreamsShareAQueue) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
  const std::string error = error_of([] { CudaDevice({}); });
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  EXPECT_TRUE(contains(error, "config: CUDA_DEVICE_MAX_CONNECTIONS is 1")) << error;
}

TEST_F(CudaDeviceTest, NewMemoryIsZeroAlsoWhereItWasUsedBefore) {
  const std::int64_t n = 100003;
  for (int round = 0; round < 3; ++round) {
    OnDevice<std::int32_t> values(device(), n);
    const std::vector<std::int32_t> read = values.read();
    EXPECT_TRUE(std::all_of(read.begin(), read.end(), [](int v) { return v == 0; })) << round;
    values.write(std::vector<std::int32_t>(static_cast<std::size_t>(n), -1));
  }
  EXPECT_EQ(device().memory_numbers().used, 0u);
  Buffer pinned = device().host_memory().allocate(5000, "pinned");
  const auto* bytes = static_cast<const char*>(pinned.data());
  EXPECT_TRUE(std::all_of(bytes, bytes + 5000, [](char c) { return c == 0; }));
}

TEST_F(CudaDeviceTest, CopiesBetweenBothArenasZeroesAndReads) {
  for (const std::int64_t n : {0, 1, 7, 1031, 100003}) {
    std::vector<float> values(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) values[static_cast<std::size_t>(i)] = static_cast<float>(i) + 0.5F;
    OnDevice<float> a(device(), values), b(device(), n);
    Stream& compute = stream(Resource::compute);
    device().copy(compute, b.buffer.data(), a.buffer.data(), a.buffer.bytes());
    EXPECT_EQ(b.read(), values);
    Buffer pinned = device().host_memory().allocate(a.buffer.bytes() + 4, "pinned");
    device().copy(stream(Resource::device_to_host), pinned.data(), b.buffer.data(), b.buffer.bytes());
    stream(Resource::device_to_host).synchronize();
    if (n > 0) {
      EXPECT_EQ(std::memcmp(pinned.data(), values.data(), b.buffer.bytes()), 0);
    }
    device().zero(compute, pinned.data(), pinned.bytes());
    device().zero(compute, b.buffer.data(), b.buffer.bytes());
    EXPECT_EQ(b.read(), std::vector<float>(static_cast<std::size_t>(n), 0.F));
    EXPECT_EQ(*static_cast<const float*>(pinned.data()), 0.F);
  }
}

TEST_F(CudaDeviceTest, ReadsWaitForTheComputeStreamAndAreCounted) {
  Buffer a = device().memory().allocate(256 * mib, "a"), b = device().memory().allocate(256 * mib, "b");
  const std::uint64_t before = device().reads();
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{1} << 20}) {  // through the landing place, and past it
    OnDevice<std::int32_t> values(device(), n);
    OnDevice<std::int32_t> ones(device(), std::vector<std::int32_t>(static_cast<std::size_t>(n), 1));
    keep_busy(device(), stream(Resource::compute), a, b, 10);
    device().copy(stream(Resource::compute), values.buffer.data(), ones.buffer.data(), ones.buffer.bytes());
    std::vector<std::int32_t> read(static_cast<std::size_t>(n));
    device().read(values.view(), read.data());
    EXPECT_EQ(read, std::vector<std::int32_t>(static_cast<std::size_t>(n), 1));
  }
  EXPECT_EQ(device().reads(), before + 2);
}

TEST_F(CudaDeviceTest, EventsOrderStreamsAndCanBeUsedAgain) {
  Buffer a = device().memory().allocate(256 * mib, "a"), b = device().memory().allocate(256 * mib, "b");
  OnDevice<std::int32_t> source(device(), std::vector<std::int32_t>{42}), middle(device(), 1), end(device(), 1);
  Stream& compute = stream(Resource::compute);
  Stream& network = stream(Resource::network);
  const std::unique_ptr<Event> event = device().make_event();
  EXPECT_TRUE(event->reached());  // not recorded yet
  event->synchronize();
  network.wait(*event);
  for (int round = 0; round < 20; ++round) {
    device().zero(compute, middle.buffer.data(), 4);
    device().zero(compute, end.buffer.data(), 4);
    compute.synchronize();
    keep_busy(device(), compute, a, b, 2);
    device().copy(compute, middle.buffer.data(), source.buffer.data(), 4);
    compute.record(*event);
    network.wait(*event);
    device().copy(network, end.buffer.data(), middle.buffer.data(), 4);
    network.synchronize();
    EXPECT_TRUE(event->reached());
    EXPECT_EQ(end.read(), std::vector<std::int32_t>{42}) << round;
  }
  keep_busy(device(), compute, a, b, 20);
  compute.record(*event);
  event->synchronize();
  EXPECT_TRUE(event->reached());
}

TEST_F(CudaDeviceTest, StreamsRunBesideEachOther) {
  Buffer a = device().memory().allocate(512 * mib, "a"), b = device().memory().allocate(512 * mib, "b");
  OnDevice<std::int32_t> one(device(), std::vector<std::int32_t>{1}), other(device(), 1);
  const std::unique_ptr<Event> long_work = device().make_event();
  keep_busy(device(), stream(Resource::compute), a, b, 200);
  stream(Resource::compute).record(*long_work);
  device().copy(stream(Resource::nvlink), other.buffer.data(), one.buffer.data(), 4);
  stream(Resource::nvlink).synchronize();
  EXPECT_FALSE(long_work->reached());
  stream(Resource::compute).synchronize();
  EXPECT_TRUE(long_work->reached());
}

TEST_F(CudaDeviceTest, AFailureIsThrownByEveryWaitAndTheFirstOneStays) {
  device().failure()->set(ErrorKind::worker_failed, "rank 3 is gone");
  device().failure()->set(ErrorKind::stalled, "later");
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(error_of([&] { stream(Resource::compute).synchronize(); }), "worker_failed: rank 3 is gone");
  }
  float value = 0;
  OnDevice<float> memory(device(), 1);
  EXPECT_EQ(error_of([&] { device().read(memory.view(), &value); }), "worker_failed: rank 3 is gone");
  const std::unique_ptr<Event> event = device().make_event();
  stream(Resource::compute).record(*event);
  event->synchronize();
}

TEST_F(CudaDeviceTest, WhoWaitsLooksWhatKernelsFoundWrong) {
  bool wrong = false;
  device().failure()->look_by(this, [&] {
    if (wrong) fail(ErrorKind::internal, "token 9 of a table of 8");
  });
  stream(Resource::compute).synchronize();
  wrong = true;
  EXPECT_EQ(error_of([&] { stream(Resource::compute).synchronize(); }), "internal: token 9 of a table of 8");
  wrong = false;
  EXPECT_EQ(error_of([&] { stream(Resource::compute).synchronize(); }), "internal: token 9 of a table of 8");
  device().failure()->look_by(this, nullptr);
}

// What compute waits for another stream is not its work: of two pieces, one made while the other stream works.
TEST_F(CudaDeviceTest, TellsHowLongComputeHasWorkedWithoutItsWaits) {
  Buffer a = device().memory().allocate(256 * mib, "a"), b = device().memory().allocate(256 * mib, "b");
  const auto done = device().make_event();
  const double begin = device().busy_seconds().value();
  keep_busy(device(), stream(Resource::compute), a, b, 10);
  const double work = device().busy_seconds().value() - begin;
  EXPECT_GT(work, 1e-4);
  keep_busy(device(), stream(Resource::network), a, b, 100);
  stream(Resource::network).record(*done);
  stream(Resource::compute).wait(*done);
  keep_busy(device(), stream(Resource::compute), a, b, 10);
  const double waited_and_worked = device().busy_seconds().value() - begin - work;
  EXPECT_GT(waited_and_worked, 0.5 * work);
  EXPECT_LT(waited_and_worked, 4 * work) << "the wait, ten times as long, is counted as work";
  EXPECT_GE(device().busy_seconds().value(), begin + work + waited_and_worked) << "it never falls";
}

TEST_F(CudaDeviceTest, OtherThreadsMayWaitAndCopy) {
  std::atomic<int> good = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      OnDevice<std::int32_t> values(device(), std::vector<std::int32_t>(1000, i));
      if (values.read() == std::vector<std::int32_t>(1000, i)) ++good;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 4);
}

}  // namespace
}  // namespace ananke::cuda
