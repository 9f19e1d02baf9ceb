// Called by the instrumented code at every basic block and comparison: plain arrays and no functions of the library, so
// that nothing here is instrumented in turn.
#include "tests/fuzz/engine/coverage.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

extern "C" const char __executable_start;  // by the linker
extern "C" const char etext;

namespace ananke::fuzz {
namespace {

constexpr unsigned slots = 1U << 16;
constexpr unsigned places = 256;
constexpr std::uintptr_t most_code = std::uintptr_t{64} << 20;

bool recording = false;
std::uintptr_t previous = 0;
std::uint8_t counts[slots];       // of this recording: how often an edge was passed
std::uint8_t nearness[slots];     // of this recording: comparisons by how many leading bits agreed
std::uint16_t touched[2][slots];  // the slots that are not zero
unsigned touched_count[2];
std::uint8_t seen[2][slots];
Compared comparisons[places];
std::uint8_t block[most_code / 16];
std::uint64_t blocks = 0;

// Independent of where the program was loaded, so that a run can be repeated exactly.
inline std::uintptr_t place_of(const void* address) {
  return static_cast<std::uintptr_t>(static_cast<const char*>(address) - &__executable_start);
}

inline unsigned mix(std::uint64_t value) { return static_cast<unsigned>(value * 0x9E3779B97F4A7C15ULL >> 48); }

inline void touch(unsigned map, std::uint8_t* values, unsigned slot) {
  if (values[slot] == 0) touched[map][touched_count[map]++] = static_cast<std::uint16_t>(slot);
  if (values[slot] != 255) ++values[slot];
}

inline void record_block(const void* address) {
  if (!recording) return;
  const std::uintptr_t place = place_of(address);
  if (place < most_code / 2) {
    const std::uint8_t bit = static_cast<std::uint8_t>(1U << (place & 7));
    if ((block[place >> 3] & bit) == 0) {
      block[place >> 3] = static_cast<std::uint8_t>(block[place >> 3] | bit);
      ++blocks;
    }
  }
  touch(0, counts, mix(place ^ previous << 20));
  previous = place;
}

inline void record_compare(const void* address, std::uint64_t left, std::uint64_t right, unsigned bytes) {
  if (!recording) return;
  const std::uintptr_t place = place_of(address);
  const auto agreeing = static_cast<unsigned>(std::countl_zero(left ^ right));
  touch(1, nearness, mix(place ^ std::uint64_t{agreeing} << 32));
  if (left != right) comparisons[mix(place) % places] = {left, right, bytes};
}

// Eight classes of counts: a loop run 5 times is not news after 6 times, but is after once.
std::uint8_t class_of(std::uint8_t count) {
  if (count < 4) return static_cast<std::uint8_t>(1U << (count - 1));
  return static_cast<std::uint8_t>(count < 8 ? 8 : count < 16 ? 16 : count < 32 ? 32 : count < 128 ? 64 : 128);
}

}  // namespace

void begin_recording() noexcept {
  previous = 0;
  for (Compared& pair : comparisons) pair = {};
  recording = true;
}

void end_recording() noexcept { recording = false; }

unsigned harvest() noexcept {
  unsigned fresh = 0;
  for (unsigned map = 0; map < 2; ++map) {
    std::uint8_t* values = map == 0 ? counts : nearness;
    for (unsigned i = 0; i < touched_count[map]; ++i) {
      const unsigned slot = touched[map][i];
      const std::uint8_t bits = map == 0 ? class_of(values[slot]) : std::uint8_t{1};
      if ((seen[map][slot] & bits) == 0) {
        seen[map][slot] = static_cast<std::uint8_t>(seen[map][slot] | bits);
        ++fresh;
      }
      values[slot] = 0;
    }
    touched_count[map] = 0;
  }
  return fresh;
}

std::vector<Compared> compared() {
  std::vector<Compared> result;
  for (const Compared& pair : comparisons) {
    if (pair.bytes != 0) result.push_back(pair);
  }
  return result;
}

std::uint64_t blocks_reached() noexcept { return blocks; }

std::string block_addresses() {
  std::string text;
  for (std::uintptr_t place = 0; place < most_code / 2; ++place) {
    if ((block[place >> 3] & 1U << (place & 7)) != 0) text += fmt::format("{:x}\n", place);
  }
  return text;
}

}  // namespace ananke::fuzz

// The names are the compiler's.
#define ANANKE_CALLER __builtin_return_address(0)
extern "C" {
void __sanitizer_cov_trace_pc() { ananke::fuzz::record_block(ANANKE_CALLER); }
void __sanitizer_cov_trace_cmp1(std::uint8_t a, std::uint8_t b) {
  ananke::fuzz::record_compare(ANANKE_CALLER, a, b, 1);
}
void __sanitizer_cov_trace_cmp2(std::uint16_t a, std::uint16_t b) {
  ananke::fuzz::record_compare(ANANKE_CALLER, a, b, 2);
}
void __sanitizer_cov_trace_cmp4(std::uint32_t a, std::uint32_t b) {
  ananke::fuzz::record_compare(ANANKE_CALLER, a, b, 4);
}
void __sanitizer_cov_trace_cmp8(std::uint64_t a, std::uint64_t b) {
  ananke::fuzz::record_compare(ANANKE_CALLER, a, b, 8);
}
void __sanitizer_cov_trace_const_cmp1(std::uint8_t a, std::uint8_t b) {
  ananke::fuzz::record_compare(ANANKE_CALLER, a, b, 1);
}
void __sanitizer_cov_trace_const_cmp2(std::uint16_t a, std::uint16_t b) {
  ananke::fuzz::record_compare(ANANKE_CALLER, a, b, 2);
}
void __sanitizer_cov_trace_const_cmp4(std::uint32_t a, std::uint32_t b) {
  ananke::fuzz::record_compare(ANANKE_CALLER, a, b, 4);
}
void __sanitizer_cov_trace_const_cmp8(std::uint64_t a, std::uint64_t b) {
  ananke::fuzz::record_compare(ANANKE_CALLER, a, b, 8);
}
void __sanitizer_cov_trace_cmpf(float, float) {}
void __sanitizer_cov_trace_cmpd(double, double) {}
// cases: their number, their width in bits, then they. Which case comes next is as good as any.
void __sanitizer_cov_trace_switch(std::uint64_t value, const std::uint64_t* cases) {
  static std::uint64_t turn = 0;
  if (cases[0] > 0) {
    ananke::fuzz::record_compare(ANANKE_CALLER, value, cases[2 + turn++ % cases[0]],
                                 static_cast<unsigned>(cases[1] / 8));
  }
}
}
