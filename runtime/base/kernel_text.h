// Small texts that the kernel writes: "Name:  value kB" tables and lists of numbers. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ananke {

// "MemTotal:  24683652 kB", "Node 0 MemTotal: ... kB", "HugePages_Total:  0", "anon 123" (memory.stat): by name; values
// in kB become bytes. Lines that are none of these are left out.
using KernelTable = std::map<std::string, std::uint64_t, std::less<>>;
KernelTable parse_kernel_table(std::string_view text);

// A number and nothing else.
std::optional<std::uint64_t> parse_number(std::string_view text);

// "0-71,144,146-147": nothing where it is no such list; an empty text is an empty list.
struct NumberRange {
  std::uint64_t first = 0, last = 0;
};
std::optional<std::vector<NumberRange>> parse_number_list(std::string_view text);
bool have_common_number(const std::vector<NumberRange>& a, const std::vector<NumberRange>& b);
bool contains_number(const std::vector<NumberRange>& list, std::uint64_t number);

}  // namespace ananke
