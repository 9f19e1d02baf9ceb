#include "plugins/backend_host/host_device.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/error.h"

namespace ananke {
namespace {

int threads_of_this_process() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Threads:")) return std::stoi(line.substr(8));
  }
  return -1;
}

bool all_zero(const Buffer& buffer) {
  const auto* bytes = static_cast<const unsigned char*>(buffer.data());
  return std::accumulate(bytes, bytes + buffer.bytes(), std::uint64_t{0}) == 0;
}

TEST(HostMemory, RefusesWhatTheSystemDoesNotHave) {
  HostDevice device("host");
  auto small = device.memory().allocate(std::size_t{3} << 20, "weights");
  for (std::size_t bytes : {std::size_t{1} << 50, ~std::size_t{0} - 4096}) {
    try {
      auto buffer = device.memory().allocate(bytes, "too much");
      FAIL() << "it has " << bytes;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::resource);
      EXPECT_NE(std::string(error.what()).find("3.00 MiB are in use"), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(device.memory().used(), small.bytes());
}

TEST(HostMemory, IsAlignedAndZeroAlsoWhenReused) {
  HostDevice device("host");
  for (int round = 0; round < 2; ++round) {
    std::vector<Buffer> buffers;
    for (std::size_t bytes : {1, 255, 256, 100000, 1 << 20, (2 << 20) + 1, 5 << 20}) {
      buffers.push_back(device.memory().allocate(bytes, "test"));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffers.back().data()) % 256, 0u);
      EXPECT_TRUE(all_zero(buffers.back())) << bytes << " in round " << round;
      std::memset(buffers.back().data(), 0xff, bytes);
    }
  }
}

TEST(HostMemory, KeepsALedgerByPurpose) {
  HostDevice device("host");
  Arena& memory = device.memory();
  EXPECT_EQ(&memory, &device.host_memory());
  {
    auto a = memory.allocate(1000, "weights");
    auto b = memory.allocate(500, "weights");
    auto c = memory.allocate(std::size_t{4} << 20, "gradients");
    EXPECT_FALSE(memory.allocate(0, "nothing"));
    auto lines = memory.ledger();
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_EQ(lines[0].purpose, "gradients");
    EXPECT_EQ(lines[1].bytes, 1500u);
    EXPECT_EQ(lines[1].allocations, 2u);
  }
  EXPECT_EQ(memory.used(), 0u);
  EXPECT_EQ(memory.peak(), 1500u + (std::size_t{4} << 20));
  EXPECT_TRUE(memory.ledger().empty());
}

TEST(HostMemory, MayBeUsedFromSeveralThreads) {
  HostDevice device("host");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        auto buffer = device.memory().allocate(i % 2 ? 1000 : std::size_t{2} << 20, "test");
        EXPECT_TRUE(all_zero(buffer));
        std::memset(buffer.data(), 1, buffer.bytes());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(device.memory().used(), 0u);
}

#ifndef ANANKE_SANITIZED
TEST(HostMemory, KeepsFreedPiecesForTheNextUse) {
  HostMemory memory;
  void* first = memory.allocate(std::size_t{10} << 20);
  memory.release(first, std::size_t{10} << 20);
  EXPECT_EQ(memory.kept(), std::size_t{10} << 20);
  void* small = memory.allocate(std::size_t{4} << 20);  // not from a piece more than twice as large
  EXPECT_NE(small, first);
  void* again = memory.allocate((std::size_t{9} << 20) + 1);
  EXPECT_EQ(again, first);
  EXPECT_EQ(memory.kept(), 0u);
  memory.release(small, std::size_t{4} << 20);
  memory.release(again, (std::size_t{9} << 20) + 1);
}
#endif

TEST(HostDevice, StartsNoThreadForWhatIsNotUsed) {
  const int before = threads_of_this_process();
  HostDevice device("host");
  for (int r = 0; r < resource_count; ++r) device.stream(static_cast<Resource>(r)).synchronize();
  EXPECT_EQ(threads_of_this_process(), before);
  HostStream::of(device.stream(Resource::compute)).enqueue([] {});
  EXPECT_EQ(threads_of_this_process(), before + 1);
  EXPECT_EQ(&device.stream(Resource::compute), &device.stream(Resource::compute));
}

TEST(HostDevice, CopiesZeroesAndReadsInStreamOrder) {
  HostDevice device("host");
  auto a = device.memory().allocate(4000, "a");
  auto b = device.memory().allocate(4000, "b");
  Stream& compute = device.stream(Resource::compute);
  Stream& network = device.stream(Resource::network);
  auto copied = device.make_event();
  HostStream::of(network).enqueue([data = static_cast<float*>(a.data())] { std::fill(data, data + 1000, 2.5f); });
  device.copy(network, b.data(), a.data(), 4000);
  device.zero(network, a.data(), 2000);
  device.copy(network, nullptr, nullptr, 0);
  device.zero(network, nullptr, 0);
  network.record(*copied);
  compute.wait(*copied);
  std::vector<float> seen(1000);
  device.read(b.view(DType::f32, {1000}), seen.data());
  EXPECT_EQ(seen, std::vector<float>(1000, 2.5f));
  device.read(a.view(DType::f32, {1000}), seen.data());
  EXPECT_EQ(seen[499], 0.f);
  EXPECT_EQ(seen[500], 2.5f);
  device.read(a.view(DType::f32, {0}), seen.data());
  EXPECT_EQ(device.reads(), 3u);
}

}  // namespace
}  // namespace ananke
