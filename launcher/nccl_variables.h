// What NCCL's variables may be: names from NCCL's documentation (2.26 to 2.28), widths of fields from the InfiniBand
// architecture and ibv_modify_qp(3).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ananke {

inline constexpr const char* newest_known_nccl = "2.28";

struct NumberRule {
  const char* name;
  long least, most;
  const char* why;  // what bounds it
  bool power_of_two = false;
};
std::span<const NumberRule> number_rules();

struct WordRule {
  const char* name;
  std::vector<std::string> words;
  bool list = false;     // several, with ',' between, after '^' all but these
  bool numbers = false;  // or a number
};
std::span<const WordRule> word_rules();

// Every name that NCCL reads, and those beginning with NCCL_ that builds and containers set for themselves.
const std::vector<std::string>& known_nccl_names();

// As NCCL reads numbers: decimal, or hexadecimal after 0x.
std::optional<long> nccl_number(std::string_view text);

}  // namespace ananke
