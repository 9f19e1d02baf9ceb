#include "launcher/last_words.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "runtime/plugin/plugin_call.h"

namespace ananke {
namespace {

constexpr std::array<int, 5> crashes = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
// Written before the handlers are set, only read after: a signal handler has no other way to what was there before.
std::array<struct sigaction, crashes.size()> before;

// "17 step", for a handler to read: what is written next is another one than what may be read.
using PhaseText = std::array<char, 80>;
std::array<PhaseText, 2> phases;
std::atomic<int> phase_now{-1};

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

void say_last_phase() {
  const int now = phase_now;
  if (now < 0) return;
  write_all("\n");
  write_all(last_phase_mark);
  write_all(phases[static_cast<std::size_t>(now)].data());
  write_all("\n");
}

void on_crash(int number, siginfo_t* info, void*) {
  say_last_words();
  say_last_phase();
  const auto which = static_cast<std::size_t>(std::find(crashes.begin(), crashes.end(), number) - crashes.begin());
  sigaction(number, &before[which], nullptr);
  // A fault comes again when the instruction is run again; what was sent must be sent again.
  if (info->si_code <= 0) raise(number);
}

}  // namespace

void LastWordsRead::read(const std::string& line) {
  if (call.empty() && line.starts_with(last_words_mark)) call = line.substr(std::strlen(last_words_mark));
  if (!phase.empty() || !line.starts_with(last_phase_mark)) return;
  const char* begin = line.data() + std::strlen(last_phase_mark);
  const auto [end, error] = std::from_chars(begin, line.data() + line.size(), step);
  if (error == std::errc() && *end == ' ') phase = end + 1;
}

void LastWords::set_phase(std::string_view phase, std::uint64_t step) noexcept {
  const int next = phase_now == 0 ? 1 : 0;
  PhaseText& text = phases[static_cast<std::size_t>(next)];
  const auto end = std::to_chars(text.data(), text.data() + 24, step).ptr;
  *end = ' ';
  const std::size_t room = text.size() - static_cast<std::size_t>(end + 2 - text.data());
  end[1 + phase.copy(end + 1, room)] = '\0';
  phase_now = next;
}

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
