// What an execution reached: edges between basic blocks and how near compared values came, as the compiler's
// -fsanitize-coverage=trace-pc,trace-cmp reports them. Of the main thread only; without instrumentation nothing is
// seen.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ananke::fuzz {

// Two values that were compared and differ: writing one where the input has the other may pass the comparison.
struct Compared {
  std::uint64_t left = 0;
  std::uint64_t right = 0;
  unsigned bytes = 0;  // width of the operands
};

void begin_recording() noexcept;
void end_recording() noexcept;
// How many features the last recording has that none before had; remembers them.
unsigned harvest() noexcept;
std::vector<Compared> compared();  // of the last recording, one for each place in the code at most

std::uint64_t blocks_reached() noexcept;  // basic blocks, of all recordings
// Their addresses within the program, in hexadecimal, one a line: for addr2line.
std::string block_addresses();

}  // namespace ananke::fuzz
