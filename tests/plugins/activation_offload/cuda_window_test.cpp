// Inputs go to pinned host memory and come back on a GPU, under other work on its copy engines.
#include <random>

#include "runtime/device/numa.h"
#include "tests/plugins/activation_offload/window_steps.h"
#include "tests/plugins/backend_cuda/gpu.h"

namespace ananke::activation_offload {
namespace {

constexpr std::int64_t tokens = 512, hidden = 1024;
constexpr std::size_t bytes = tokens * hidden * sizeof(float);

class CudaWindow : public ::testing::Test {
 protected:
  void SetUp() override {
    ANANKE_NEEDS_GPUS(1);
    device_ = testing::open_gpu(0);
  }
  Stream& compute() { return device_->stream(Resource::compute); }
  // Values written are numbers of their own; read back, they are looked at when all is done.
  void write(void* place, float value) {
    Buffer from = device_->host_memory().allocate(bytes, "test (host)");
    std::fill_n(static_cast<float*>(from.data()), tokens * hidden, value);
    device_->copy(compute(), place, from.data(), bytes);
    written_.push_back(std::move(from));
  }
  void expect(const void* place, float value) {
    Buffer to = device_->host_memory().allocate(bytes, "test (host)");
    device_->copy(compute(), to.data(), place, bytes);
    read_.emplace_back(std::move(to), value);
  }
  void check() {
    for (const Resource resource : {Resource::compute, Resource::device_to_host, Resource::host_to_device}) {
      device_->stream(resource).synchronize();
    }
    for (const auto& [buffer, value] : read_) {
      const auto* values = static_cast<const float*>(buffer.data());
      for (std::int64_t i = 0; i < tokens * hidden; ++i) ASSERT_EQ(values[i], value) << i;
    }
    read_.clear();
    written_.clear();
  }
  std::unique_ptr<cuda::CudaDevice> device_;
  std::vector<Buffer> written_;
  std::vector<std::pair<Buffer, float>> read_;
};

TEST_F(CudaWindow, BringsEveryInputBackAsItWasUnderOtherWork) {
  std::mt19937 random(11);
  Buffer a = device_->memory().allocate(std::size_t{64} << 20, "test"),
         b = device_->memory().allocate(std::size_t{64} << 20, "test");
  const auto hold_up = [&](Resource resource) {
    for (unsigned times = random() % 4; times > 0; --times) {
      device_->copy(device_->stream(resource), a.data(), b.data(), a.bytes());
    }
  };
  for (const int slots : {1, 3}) {
    for (const std::uint64_t places : {0, 5}) {
      const Shape shape{7, slots, bytes, hidden, DType::f32};
      const Layout layout = make_layout({.window = places * bytes}, shape);
      Window window(*device_, nullptr, layout, shape);
      float number = 0;
      for (int step = 0; step < 2; ++step) {
        run_step(
            hold_up, window, 6, slots, 2, number, [&](void* place, float value) { write(place, value); },
            [&](void* place, float value) { expect(place, value); });
        check();
      }
      window.clock().collect();
      const double seconds = window.clock().seconds(CopyClock::copies).value();
      std::printf("%d microbatches, %d places: %.1f GB/s while both directions and other copies run; stood %.3f s\n",
                  slots, layout.places, static_cast<double>(window.bytes_out() + window.bytes_in()) / seconds * 1e-9,
                  window.clock().seconds(CopyClock::stalls).value());
    }
  }
}

TEST_F(CudaWindow, SaysOnWhichNodeItsHostMemoryIs) {
  const Shape shape{4, 2, bytes, hidden, DType::f32};
  Window window(*device_, nullptr, make_layout({}, shape), shape);
  NumaPages pages;
  for (const Buffer& slab : window.slabs()) pages += numa_pages(slab.data(), slab.bytes());
  bool wrong = false;
  const std::string verdict = numa_verdict(pages, device_->numa_node(), wrong);
  std::printf("pinned memory %s\n", verdict.c_str());
  EXPECT_TRUE(!pages.on.empty() || verdict.find("UNKNOWN") != std::string::npos) << verdict;
}

}  // namespace
}  // namespace ananke::activation_offload
