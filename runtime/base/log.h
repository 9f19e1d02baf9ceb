// Logging: one file per rank; warnings and above also on standard error. A thin face over spdlog, which stays out of
// public headers. Thread-safe. Call sites: log_info("gathered {} units", n).
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <string_view>
#include <utility>

namespace ananke {

enum class LogLevel { debug, info, warning, error };
enum class LogEcho { warnings, none };  // on standard error too: `none` where that is the file itself

// Until called, everything from `info` up goes to standard error. `label` ("rank 3", "launcher") opens every line.
// Throws Error(resource) naming the file where it cannot be created.
void open_log(const std::filesystem::path& file, std::string_view label, LogLevel level = LogLevel::info,
              LogEcho echo = LogEcho::warnings);
void write_log(LogLevel level, std::string_view message) noexcept;
void flush_log() noexcept;

template <class... Args>
void log_debug(fmt::format_string<Args...> text, Args&&... args) {
  write_log(LogLevel::debug, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> text, Args&&... args) {
  write_log(LogLevel::info, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> text, Args&&... args) {
  write_log(LogLevel::warning, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> text, Args&&... args) {
  write_log(LogLevel::error, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace ananke
