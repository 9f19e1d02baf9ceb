#include "launcher/last_words.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "runtime/plugin/plugin_call.h"

namespace ananke {
namespace {

constexpr std::array<int, 5> crashes = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
// Written before the handlers are set, only read after: a signal handler has no other way to what was there before.
std::array<struct sigaction, crashes.size()> before;

void write_all(const char* text) {
  [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, text, std::strlen(text));
}

void on_crash(int number, siginfo_t* info, void*) {
  if (const char* call = PluginScope::current_text()) {
    write_all("\n");
    write_all(last_words_mark);
    write_all(call);
    write_all("\n");
  }
  const auto which = static_cast<std::size_t>(std::find(crashes.begin(), crashes.end(), number) - crashes.begin());
  sigaction(number, &before[which], nullptr);
  // A fault comes again when the instruction is run again; what was sent must be sent again.
  if (info->si_code <= 0) raise(number);
}

}  // namespace

LastWords::LastWords() {
  stack_t stack{};
  sigaltstack(nullptr, &stack);
  if (stack.ss_flags & SS_DISABLE) {  // a sanitizer brings its own
    stack_.resize(std::max<std::size_t>(static_cast<std::size_t>(SIGSTKSZ), 1 << 16));
    stack = {};
    stack.ss_sp = stack_.data();
    stack.ss_size = stack_.size();
    sigaltstack(&stack, nullptr);
  }
  struct sigaction action {};
  action.sa_sigaction = on_crash;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < crashes.size(); ++i) sigaction(crashes[i], nullptr, &before[i]);
  for (int number : crashes) sigaction(number, &action, nullptr);
}

LastWords::~LastWords() {
  for (std::size_t i = 0; i < crashes.size(); ++i) sigaction(crashes[i], &before[i], nullptr);
  if (stack_.empty()) return;
  stack_t none{};
  none.ss_flags = SS_DISABLE;
  sigaltstack(&none, nullptr);
}

}  // namespace ananke
