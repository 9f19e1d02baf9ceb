#include "tests/fuzz/engine/limits.h"

#include <sys/time.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

extern "C" {
// Of the sanitizers' runtime; null where there is none.
int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void*, std::size_t),
                                              void (*)(const volatile void*)) __attribute__((weak));
std::size_t __sanitizer_get_allocated_size(const volatile void*) __attribute__((weak));
void __sanitizer_set_death_callback(void (*)()) __attribute__((weak));

// handle_abort: abort() ends with a stack and the callback too. The mapping of a huge allocation alone takes seconds.
const char* __asan_default_options() {
  return "handle_abort=1:max_allocation_size_mb=2048:quarantine_size_mb=16:malloc_context_size=12";
}
}

namespace ananke::fuzz {
namespace {

bool executing = false;
long held = 0;  // since the execution began
long allowed = 0;
long most = 0;
volatile std::sig_atomic_t executions = 0;
volatile std::sig_atomic_t at_last_tick = 0;

[[noreturn]] void fault(const char* what, long number, const char* unit) {
  executing = false;
  std::fprintf(stderr, "fault: %s %ld %s\n", what, number, unit);
  std::abort();
}

void allocated(const volatile void*, std::size_t bytes) {
  if (!executing) return;
  held += static_cast<long>(bytes);
  if (held > most) most = held;
  if (held > allowed) fault("the reader holds more memory than its input explains:", held, "bytes");
}

void freed(const volatile void* memory) {
  if (executing && memory != nullptr) held -= static_cast<long>(__sanitizer_get_allocated_size(memory));
}

void tick(int) {
  if (executing && executions == at_last_tick) fault("an execution takes more than", most_seconds, "s");
  at_last_tick = executions;
}

}  // namespace

void on_fault(void (*save)()) noexcept {
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(save);
}

void watch_time() noexcept {
  std::signal(SIGPROF, tick);
  const itimerval every = {{most_seconds, 0}, {most_seconds, 0}};
  ::setitimer(ITIMER_PROF, &every, nullptr);
  if (__sanitizer_install_malloc_and_free_hooks != nullptr) __sanitizer_install_malloc_and_free_hooks(allocated, freed);
}

void begin_execution(std::size_t input_bytes) noexcept {
  held = 0;
  allowed = static_cast<long>(memory_base + memory_per_byte * input_bytes);
  executions = (executions + 1) & 0xFFFFFF;
  executing = true;
}

void end_execution() noexcept { executing = false; }
std::size_t most_memory() noexcept { return static_cast<std::size_t>(most); }

}  // namespace ananke::fuzz
