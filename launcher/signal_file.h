// Signals as something to poll, instead of handlers.
#pragma once

#include <signal.h>

#include <initializer_list>

#include "runtime/control/socket.h"

namespace ananke {

// Blocks these signals in the calling thread (and those it starts) and collects them; the destructor restores the mask.
class SignalFile {
 public:
  explicit SignalFile(std::initializer_list<int> signals);
  ~SignalFile();
  SignalFile(const SignalFile&) = delete;
  SignalFile& operator=(const SignalFile&) = delete;

  int descriptor() const { return file_.get(); }
  // The next one that came; 0: none.
  int take();

 private:
  sigset_t before_;
  Descriptor file_;
};

}  // namespace ananke
