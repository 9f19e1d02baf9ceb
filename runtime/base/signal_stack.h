// A stack for signal handlers, so that a thread whose own stack has overflowed can still say so.
#pragma once

#include <cstddef>
#include <memory>

namespace ananke {

// Gives the calling thread an alternate signal stack (sigaltstack) for as long as it lives; nothing where the thread
// has one already, as sanitizers bring. Handlers must be set with SA_ONSTACK to run there. For the thread that made it.
class SignalStack {
 public:
  SignalStack();
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  std::unique_ptr<std::byte[]> memory_;  // null: not ours
};

}  // namespace ananke
