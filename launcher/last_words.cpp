#include "launcher/last_words.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
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

void say_last_words() {
  const char* call = PluginScope::current_text();
  if (call == nullptr) return;
  write_all("\n");
  write_all(last_words_mark);
  write_all(call);
  write_all("\n");
}

void on_crash(int number, siginfo_t* info, void*) {
  say_last_words();
  const auto which = static_cast<std::size_t>(std::find(crashes.begin(), crashes.end(), number) - crashes.begin());
  sigaction(number, &before[which], nullptr);
  // A fault comes again when the instruction is run again; what was sent must be sent again.
  if (info->si_code <= 0) raise(number);
}

}  // namespace

LastWords::LastWords() {
  std::atexit(say_last_words);  // a plugin that calls exit()
  struct sigaction action {};
  action.sa_sigaction = on_crash;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < crashes.size(); ++i) sigaction(crashes[i], nullptr, &before[i]);
  for (int number : crashes) sigaction(number, &action, nullptr);
}

LastWords::~LastWords() {
  for (std::size_t i = 0; i < crashes.size(); ++i) sigaction(crashes[i], &before[i], nullptr);
}

}  // namespace ananke
