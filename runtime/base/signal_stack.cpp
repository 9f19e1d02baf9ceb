#include "runtime/base/signal_stack.h"

#include <csignal>

namespace ananke {
namespace {

constexpr std::size_t bytes = std::size_t{1} << 16;  // several times what the kernel saves with AVX-512 or SVE

}  // namespace

SignalStack::SignalStack() {
  stack_t stack{};
  sigaltstack(nullptr, &stack);
  if ((stack.ss_flags & SS_DISABLE) == 0) return;
  memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
  stack = {};
  stack.ss_sp = memory_.get();
  stack.ss_size = bytes;
  if (sigaltstack(&stack, nullptr) != 0) memory_.reset();
}

SignalStack::~SignalStack() {
  if (!memory_) return;
  stack_t none{};
  none.ss_flags = SS_DISABLE;
  sigaltstack(&none, nullptr);
}

}  // namespace ananke
