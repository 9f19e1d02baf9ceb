#include "runtime/base/units.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include "runtime/base/error.h"

namespace ananke {
namespace {

std::string three_digits(double value) {
  if (value < 9.995) return fmt::format("{:.2f}", value);
  if (value < 99.95) return fmt::format("{:.1f}", value);
  return fmt::format("{:.0f}", value);
}

struct Unit {
  std::string_view name;
  double factor;
};

// Splits "12.5 MiB" and looks the unit up; empty unit means the first of the table.
template <std::size_t N>
double parse_quantity(std::string_view text, const std::array<Unit, N>& units, std::string_view what) {
  double value = 0;
  const char* end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, value);
  while (rest != end && std::isspace(static_cast<unsigned char>(*rest))) ++rest;
  std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  if (error == std::errc() && value >= 0 && std::isfinite(value)) {
    for (const Unit& known : units) {
      if (unit == known.name) return value * known.factor;
    }
  }
  std::string names;
  for (const Unit& known : units) names += fmt::format("{}'{}'", names.empty() ? "" : ", ", known.name);
  fail(ErrorKind::config, "'{}' is not a {}: expected a number >= 0 followed by one of {}", text, what, names);
}

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
  static constexpr std::array<const char*, 6> names = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1023.5 && unit + 1 < names.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", three_digits(value), names[unit]);
}

std::string format_count(double count) {
  static constexpr std::array<const char*, 6> names = {"K", "M", "B", "T", "P", "E"};
  if (std::abs(count) < 999.5) return fmt::format("{:.0f}", count);
  double value = count / 1000;
  std::size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < names.size()) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{}{}", three_digits(value), names[unit]);
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds)) return "unknown";
  if (seconds < 1) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
  return fmt::format("{} d {:02} h", whole / 86400, whole % 86400 / 3600);
}

std::uint64_t parse_bytes(std::string_view text) {
  static constexpr std::array<Unit, 12> units = {{{"", 1},
                                                  {"B", 1},
                                                  {"KiB", 1024.0},
                                                  {"MiB", 1048576.0},
                                                  {"GiB", 1073741824.0},
                                                  {"TiB", 1099511627776.0},
                                                  {"kB", 1e3},
                                                  {"KB", 1e3},
                                                  {"MB", 1e6},
                                                  {"GB", 1e9},
                                                  {"TB", 1e12},
                                                  {"PB", 1e15}}};
  const double value = parse_quantity(text, units, "size in bytes");
  if (value >= 18446744073709551615.0) fail(ErrorKind::config, "'{}' is more bytes than 64 bits can count", text);
  return static_cast<std::uint64_t>(value);
}

std::chrono::milliseconds parse_duration(std::string_view text) {
  static constexpr std::array<Unit, 6> units = {
      {{"s", 1e3}, {"ms", 1.0}, {"min", 60e3}, {"m", 60e3}, {"h", 3600e3}, {"d", 86400e3}}};
  const double value = parse_quantity(text, units, "duration");
  if (value > 1e15) fail(ErrorKind::config, "'{}' is longer than any job: at most 30000 years", text);
  return std::chrono::milliseconds(static_cast<std::int64_t>(value));
}

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

}  // namespace ananke
