#include "runtime/config/nearest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

namespace ananke {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Optimal string alignment; rows i-2, i-1, i of the usual table.
  const auto same = [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
  };
  std::vector<std::size_t> before, above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool equal = same(a[i - 1], b[j - 1]);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (equal ? 0 : 1)});
      if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1])) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before = above;
    above = row;
  }
  return above[b.size()];
}

std::string nearest_name(std::string_view wrong, const std::vector<std::string>& names) {
  if (wrong.size() > 200) return "";
  std::size_t best = std::max<std::size_t>(2, wrong.size() / 3) + 1;
  std::string nearest;
  for (const std::string& name : names) {
    const std::size_t distance = edit_distance(wrong, name);
    if (distance < best && distance < name.size()) {
      best = distance;
      nearest = name;
    }
  }
  return nearest;
}

std::string suggestion(std::string_view wrong, const std::vector<std::string>& names) {
  const std::string nearest = nearest_name(wrong, names);
  if (!nearest.empty()) return fmt::format("; did you mean '{}'?", nearest);
  if (names.empty()) return "";
  return fmt::format("; there {} {}", names.size() == 1 ? "is only" : "are:", fmt::join(names, ", "));
}

}  // namespace ananke
