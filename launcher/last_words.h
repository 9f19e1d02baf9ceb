// Last words of a worker that crashes: lines in its log, which the launcher finds there. They say where it was, which
// the launcher may not have heard yet, and the plugin it was inside of.
#pragma once

#include <csignal>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/signal_stack.h"

namespace ananke {

// What the lines begin with.
constexpr const char* last_words_mark = "last words: ";
constexpr const char* last_phase_mark = "last phase: ";

struct LastWordsRead {
  std::string call;   // "ROLE plugin '...' (file), in METHOD"; empty: it was in none
  std::string phase;  // empty: it has not said
  std::uint64_t step = 0;
  void read(const std::string& line);  // of the log, one after another; the first of each kind counts
};

// While it lives, SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT, and exit(), write "last words: ROLE plugin '...' (file),
// in METHOD" to standard error where the thread is inside a plugin's call, and the signals "last phase: STEP PHASE",
// and then end the process as they would have without it (a handler that was there before, as sanitizers have one, gets
// the signal next). For the main thread; once per process.
class LastWords {
 public:
  LastWords();
  ~LastWords();
  LastWords(const LastWords&) = delete;
  LastWords& operator=(const LastWords&) = delete;
  // What the worker is doing from here on. From one thread at a time.
  static void set_phase(std::string_view phase, std::uint64_t step) noexcept;

 private:
  SignalStack stack_;
};

}  // namespace ananke
