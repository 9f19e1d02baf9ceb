#include "runtime/base/signal_stack.h"

#include <gtest/gtest.h>

#include <csignal>
#include <thread>

namespace ananke {
namespace {

bool has_signal_stack() {
  stack_t stack{};
  sigaltstack(nullptr, &stack);
  return (stack.ss_flags & SS_DISABLE) == 0;
}

TEST(SignalStack, IsThereWhileItLives) {
  std::thread([] {
    const bool before = has_signal_stack();  // a sanitizer's own
    {
      const SignalStack stack;
      EXPECT_TRUE(has_signal_stack());
      { const SignalStack nested; }
      EXPECT_TRUE(has_signal_stack());
    }
    EXPECT_EQ(has_signal_stack(), before);
  }).join();
}

}  // namespace
}  // namespace ananke
