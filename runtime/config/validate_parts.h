// Shared by the files that make validate.h: how problems are listed, and numbers to advise.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>

#include "runtime/config/problem.h"

namespace ananke {

template <class... Args>
void add(Problems* problems, std::string path, fmt::format_string<Args...> text, Args&&... args) {
  problems->push_back({std::move(path), fmt::format(text, std::forward<Args>(args)...)});
}

inline void append(Problems* all, Problems more) { all->insert(all->end(), more.begin(), more.end()); }

// The multiple of `unit` nearest below and above, for advice: "6 or 8".
inline std::string multiples_near(std::uint64_t value, std::uint64_t unit) {
  const std::uint64_t below = value / unit * unit;
  return below == 0 ? fmt::format("{}", unit) : fmt::format("{} or {}", below, below + unit);
}

}  // namespace ananke
