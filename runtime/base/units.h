// Human-readable bytes, durations and counts, both ways.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace ananke {

// 0 B, 1023 B, 1.00 KiB, 55.5 GiB: three significant digits, binary units.
std::string format_bytes(std::uint64_t bytes);
// 950, 12.3K, 2.60M, 951.9B, 1.02T: decimal units, for parameters, tokens and FLOPs.
std::string format_count(double count);
// 35 ms, 12.4 s, 3 min 20 s, 2 h 05 min, 3 d 04 h.
std::string format_duration(double seconds);
// "64 MiB", "2GB", "1024": throws Error(config) that quotes the text and lists the units it knows.
std::uint64_t parse_bytes(std::string_view text);
// "500ms", "30s", "5 min", "2h": throws Error(config) likewise.
std::chrono::milliseconds parse_duration(std::string_view text);
// "2026-11-30T09:05:00Z".
std::string utc_now();

}  // namespace ananke
