#include "runtime/base/kernel_text.h"

#include <algorithm>
#include <charconv>

namespace ananke {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

// Calls visit(line) for every line.
template <class Visit>
void for_each_line(std::string_view text, const Visit& visit) {
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    visit(trimmed(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

std::string_view without_node(std::string_view line) {
  if (!line.starts_with("Node ")) return line;
  const auto digits = line.find_first_not_of("0123456789", 5);
  return digits == std::string_view::npos ? line : trimmed(line.substr(digits));
}

}  // namespace

std::optional<std::uint64_t> parse_number(std::string_view text) {
  text = trimmed(text);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

KernelTable parse_kernel_table(std::string_view text) {
  KernelTable table;
  for_each_line(text, [&](std::string_view whole) {
    const std::string_view line = without_node(whole);
    const auto name_end = line.find_first_of(": \t");
    if (name_end == std::string_view::npos || name_end == 0) return;
    std::string_view rest = trimmed(line.substr(name_end + 1));
    std::uint64_t unit = 1;
    if (rest.ends_with(" kB")) {
      rest.remove_suffix(3);
      unit = 1024;
    }
    const std::optional<std::uint64_t> value = parse_number(rest);
    if (value && *value <= UINT64_MAX / unit) table[std::string(line.substr(0, name_end))] = *value * unit;
  });
  return table;
}

std::optional<std::vector<NumberRange>> parse_number_list(std::string_view text) {
  std::vector<NumberRange> list;
  text = trimmed(text);
  while (!text.empty()) {
    const auto end = std::min(text.find(','), text.size());
    const std::string_view entry = text.substr(0, end);
    const auto dash = entry.find('-');
    const std::optional<std::uint64_t> first = parse_number(entry.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : parse_number(entry.substr(dash + 1));
    if (!first || !last || *last < *first) return std::nullopt;
    list.push_back({*first, *last});
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return list;
}

bool have_common_number(const std::vector<NumberRange>& a, const std::vector<NumberRange>& b) {
  return std::ranges::any_of(a, [&](const NumberRange& x) {
    return std::ranges::any_of(b, [&](const NumberRange& y) { return x.first <= y.last && y.first <= x.last; });
  });
}

bool contains_number(const std::vector<NumberRange>& list, std::uint64_t number) {
  return have_common_number(list, {{number, number}});
}

}  // namespace ananke
