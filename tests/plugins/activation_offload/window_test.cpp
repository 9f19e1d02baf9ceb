// Inputs go to the host and come back as they were, whatever copies take how long; on the host backend.
#include "plugins/activation_offload/window.h"

#include <gtest/gtest.h>

#include <chrono>
#include <latch>
#include <random>
#include <thread>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "runtime/plugin/registry.h"
#include "runtime/roles/backend.h"
#include "tests/plugins/activation_offload/window_steps.h"
#include "tests/refusal.h"

namespace ananke::activation_offload {
namespace {

constexpr std::int64_t tokens = 5, hidden = 7;
constexpr std::size_t bytes = tokens * hidden * sizeof(float);

class WindowTest : public testing::Test {
 protected:
  WindowTest() : context_{job_, site_, {1, 1}, 0, 1} {
    plugins_.load("backend_host", ANANKE_BINARY_DIR "/lib/ananke/backend_host.so");
    backend_ = plugins_.create<Backend>("backend_host", context_, "");
  }
  Device& device() { return backend_->device(); }
  Stream& compute() { return device().stream(Resource::compute); }

  // Copies under way still use the window's memory.
  struct Settled {
    Device* device = nullptr;
    void operator()(Window* window) const {
      for (const Resource resource : {Resource::compute, Resource::device_to_host, Resource::host_to_device}) {
        device->stream(resource).synchronize();
      }
      delete window;
    }
  };
  std::unique_ptr<Window, Settled> make(const Settings& settings, int layers, int microbatches) {
    const Shape shape{layers, microbatches, bytes, hidden, DType::f32};
    layout_ = make_layout(settings, shape);
    return {new Window(device(), backend_->operators().wire, layout_, shape), Settled{&device()}};
  }
  // A block's work: fills, or looks.
  void write(void* place, float value) {
    compute().run_on_host([=] { std::fill_n(static_cast<float*>(place), tokens * hidden, value); });
  }
  void expect(void* place, float value) {
    compute().run_on_host([=] {
      for (std::int64_t i = 0; i < tokens * hidden; ++i) ASSERT_EQ(static_cast<const float*>(place)[i], value);
    });
  }
  void delay(Resource resource, int microseconds) {
    device().stream(resource).run_on_host(
        [=] { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); });
  }

  Job job_;
  Site site_;
  const RoleContext context_;
  PluginRegistry plugins_;
  std::unique_ptr<Backend> backend_;
  Layout layout_;
};

TEST_F(WindowTest, RefusesCallsOutOfOrder) {
  const auto window = make({}, 4, 2);
  EXPECT_ERROR(window->place(6), ErrorKind::internal, "input 6 of 6");
  EXPECT_ERROR(window->keep(0), ErrorKind::internal, "input 0 is kept, but was not written");
  EXPECT_ERROR(window->take(0), ErrorKind::internal, "input 0 is taken, but was not kept");
  EXPECT_ERROR(window->forget(0), ErrorKind::internal, "input 0 is forgotten");
  for (int input = 0; input < 4; ++input) window->place(input);
  EXPECT_ERROR(window->place(4), ErrorKind::internal, "all 4 places of the window are in use");
  window->keep(0);
  EXPECT_NE(window->place(4), nullptr);
  EXPECT_ERROR(window->place(0), ErrorKind::internal, "input 0 is written while it waits on the host");
  compute().synchronize();
}

TEST_F(WindowTest, BringsEveryInputBackAsItWasHoweverLongCopiesTake) {
  std::mt19937 random(7);
  const auto hold_up = [&](Resource resource) {
    if (random() % 4 == 0) delay(resource, static_cast<int>(random() % 300));
  };
  for (const int slots : {1, 3}) {
    for (const std::uint64_t window_bytes : {std::uint64_t{0}, std::uint64_t{5 * 256}, std::uint64_t{1} << 30}) {
      const int layers = 7, moved = layers - 1;
      const auto window = make({.window = window_bytes}, layers, slots);
      float number = 0;
      for (int step = 0; step < 3; ++step) {
        run_step(
            hold_up, *window, moved, slots, 2, number, [&](void* place, float value) { write(place, value); },
            [&](void* place, float value) { expect(place, value); });
      }
      for (const Resource resource : {Resource::compute, Resource::device_to_host, Resource::host_to_device}) {
        device().stream(resource).synchronize();
      }
      const auto all = static_cast<std::uint64_t>(3 * 2 * moved * slots) * bytes;
      EXPECT_EQ(window->bytes_out(), all);
      EXPECT_EQ(window->bytes_in(), all - 3u * 2 * static_cast<std::uint64_t>(layout_.places) * bytes)
          << "what was still there did not come back";
      window->clock().collect();
      EXPECT_GT(window->clock().seconds(CopyClock::copies).value(), 0);
      EXPECT_GE(window->clock().seconds(CopyClock::stalls).value(), 0);
    }
  }
}

// Where copies are slower than what is computed, the compute stream stands; that is measured.
TEST_F(WindowTest, MeasuresThatTheComputeStreamStood) {
  const auto window = make({.window = 0}, 5, 1);
  window->begin({});
  for (int input = 0; input < 2; ++input) window->place(input);
  std::latch gate(1);
  device().stream(Resource::device_to_host).run_on_host([&] { gate.wait(); });
  window->keep(0);
  window->place(2);  // where input 0 is, which has not left
  gate.count_down();
  compute().synchronize();
  window->clock().collect();
  EXPECT_GT(window->clock().seconds(CopyClock::stalls).value(), 0);
}

// Without a list of takes nothing comes back ahead, and all comes back.
TEST_F(WindowTest, FetchesWhatWasNotAnnounced) {
  const auto window = make({.window = 0}, 6, 1);
  window->begin({});
  for (int input = 0; input < 5; ++input) {
    write(window->place(input), static_cast<float>(input));
    window->keep(input);
  }
  for (const int input : {0, 3, 4, 1, 2}) {
    expect(window->take(input), static_cast<float>(input));
    window->forget(input);
  }
  compute().synchronize();
  EXPECT_EQ(window->bytes_in(), 4 * bytes);
}

// An evaluation, or a step that failed, leaves nothing behind.
TEST_F(WindowTest, ForgetsWhatNobodyTook) {
  const auto window = make({.window = 0}, 5, 1);
  for (int round = 0; round < 4; ++round) {
    window->begin({});
    for (int input = 0; input < 4; ++input) {
      window->place(input);
      if (round % 2 == 0)
        window->keep(input);
      else
        window->forget(input);
    }
  }
  EXPECT_EQ(window->bytes_out(), 2u * 4 * bytes);
  for (const Resource resource : {Resource::compute, Resource::device_to_host}) device().stream(resource).synchronize();
}

TEST_F(WindowTest, InFp8RoundsOnceAndAlwaysOnTheWay) {
  const auto window = make({.window = 1 << 20, .fp8 = true}, 5, 1);
  window->begin({3, 2, 1, 0});
  for (int input = 0; input < 4; ++input) {
    write(window->place(input), 1.0f + 0.03f);
    window->keep(input);
  }
  for (const int input : {3, 2, 1, 0}) {
    expect(window->take(input), 1.0f);
    window->forget(input);
  }
  compute().synchronize();
  EXPECT_EQ(window->bytes_out(), 4u * (tokens * hidden + 1));
}

}  // namespace
}  // namespace ananke::activation_offload
