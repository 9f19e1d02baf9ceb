// Bounds of one execution: memory, by the sanitizer's allocation hooks, and processor time. Whoever passes one is a
// fault: the process ends with a stack, and what was set by on_fault() is called on the way.
#pragma once

#include <cstddef>

namespace ananke::fuzz {

// The most that may be allocated at one time: the second is for each byte of input.
constexpr std::size_t memory_base = std::size_t{16} << 20;
constexpr std::size_t memory_per_byte = 256;
constexpr int most_seconds = 1;  // of processor time, twice that when it begins between two ticks

void on_fault(void (*save)()) noexcept;  // also called where a sanitizer or an abort ends the process
void watch_time() noexcept;              // once, at start
void begin_execution(std::size_t input_bytes) noexcept;
void end_execution() noexcept;
std::size_t most_memory() noexcept;  // that an execution held at one time, so far

}  // namespace ananke::fuzz
