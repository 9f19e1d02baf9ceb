// Last words of a worker that crashes inside a plugin: one line into its log, which the launcher finds there.
#pragma once

#include <csignal>

#include "runtime/base/signal_stack.h"

namespace ananke {

// What the line begins with.
constexpr const char* last_words_mark = "last words: ";

// While it lives, SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT, and exit(), write "last words: ROLE plugin '...' (file),
// in METHOD" to standard error where the thread is inside a plugin's call, and then end the process as they would have
// without it (a handler that was there before, as sanitizers have one, gets the signal next). For the main thread; once
// per process.
class LastWords {
 public:
  LastWords();
  ~LastWords();
  LastWords(const LastWords&) = delete;
  LastWords& operator=(const LastWords&) = delete;

 private:
  SignalStack stack_;
};

}  // namespace ananke
