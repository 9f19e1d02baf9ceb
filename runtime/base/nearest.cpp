#include "runtime/base/nearest.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

namespace ananke {
namespace {

bool same(char a, char b) {
  return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
}

// Optimal string alignment distance, given up (limit + 1) once it must exceed `limit`.
std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t limit) {
  if ((a.size() > b.size() ? a.size() - b.size() : b.size() - a.size()) > limit) return limit + 1;
  std::vector<std::size_t> before(b.size() + 1);
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same(a[i - 1], b[j - 1]) ? 0 : 1)});
      if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    if (*std::min_element(row.begin(), row.end()) > limit) return limit + 1;
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace

std::string nearest_name(std::string_view name, const std::vector<std::string>& known) {
  constexpr std::size_t longest = 256;  // nobody mistypes more; the comparison takes the product of both lengths
  if (name.size() > longest) return "";
  std::size_t limit = std::max<std::size_t>(2, name.size() / 3);
  const std::string* nearest = nullptr;
  for (const std::string& candidate : known) {
    const std::size_t distance = edit_distance(name, candidate, limit);
    if (distance > limit || distance >= candidate.size() || (nearest && distance == limit)) continue;
    nearest = &candidate;
    limit = distance;
    if (distance == 0) break;
  }
  return nearest ? *nearest : std::string();
}

std::string suggestion(std::string_view name, const std::vector<std::string>& known) {
  const std::string nearest = nearest_name(name, known);
  if (!nearest.empty()) return fmt::format("; did you mean '{}'?", nearest);
  if (known.empty()) return "";
  return fmt::format("; there {} {}", known.size() == 1 ? "is only" : "are:", fmt::join(known, ", "));
}

}  // namespace ananke
