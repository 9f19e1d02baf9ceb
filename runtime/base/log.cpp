#include "runtime/base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <mutex>

#include "runtime/base/error.h"
#include "runtime/base/printable.h"

namespace ananke {
namespace {

std::mutex guard;
std::shared_ptr<spdlog::logger> current;

spdlog::level::level_enum level_of(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::debug: return spdlog::level::debug;
    case LogLevel::info: return spdlog::level::info;
    case LogLevel::warning: return spdlog::level::warn;
    case LogLevel::error: return spdlog::level::err;
  }
  return spdlog::level::err;
}

std::shared_ptr<spdlog::logger> logger() {
  std::lock_guard lock(guard);
  if (!current) {
    auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    current = std::make_shared<spdlog::logger>("ananke", sink);
    current->set_pattern("%H:%M:%S %l: %v");
  }
  return current;
}

}  // namespace

void open_log(const std::filesystem::path& file, std::string_view label, LogLevel level, LogEcho echo) {
  try {
    auto made = std::make_shared<spdlog::logger>(
        "ananke", std::make_shared<spdlog::sinks::basic_file_sink_mt>(file.string(), false));
    if (echo == LogEcho::warnings) {
      auto to_console = std::make_shared<spdlog::sinks::stderr_sink_mt>();
      to_console->set_level(spdlog::level::warn);
      made->sinks().push_back(std::move(to_console));
    }
    made->set_pattern(fmt::format("%Y-%m-%d %H:%M:%S.%e {} %l: %v", label));
    made->set_level(level_of(level));
    // A killed worker must not take its last words with it.
    made->flush_on(spdlog::level::info);
    std::lock_guard lock(guard);
    current = made;
  } catch (const spdlog::spdlog_ex& error) {
    fail(ErrorKind::resource, "cannot open the log file {}: {}; check that the folder exists and can be written",
         file.string(), error.what());
  }
}

void write_log(LogLevel level, std::string_view message) noexcept {
  try {
    logger()->log(level_of(level), "{}", printable(message));  // it may quote a file, or a stranger's connection
  } catch (...) {                                              // logging must never end a job
  }
}

void flush_log() noexcept {
  try {
    logger()->flush();
  } catch (...) {
  }
}

}  // namespace ananke
