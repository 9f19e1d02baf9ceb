#include "runtime/base/error.h"

#include <cstring>

#include "runtime/base/printable.h"

namespace ananke {

const char* name_of(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::internal: return "internal";
    case ErrorKind::usage: return "usage";
    case ErrorKind::config: return "config";
    case ErrorKind::plugin: return "plugin";
    case ErrorKind::data: return "data";
    case ErrorKind::checkpoint: return "checkpoint";
    case ErrorKind::numeric: return "numeric";
    case ErrorKind::resource: return "resource";
    case ErrorKind::worker_failed: return "worker_failed";
    case ErrorKind::stalled: return "stalled";
    case ErrorKind::interrupted: return "interrupted";
  }
  return "unknown";
}

namespace {

constexpr std::size_t longest_message = std::size_t{16} << 10;  // some screens full: more is no message

}  // namespace

// Kept as text, since it may quote a file.
Error::Error(ErrorKind kind, const std::string& message)
    : std::runtime_error(printable(message, longest_message)), kind_(kind) {}
Error::~Error() = default;

void detail::check_failed(const char* condition, const char* file, int line, const std::string& message) {
  const char* base = std::strrchr(file, '/');
  fail(ErrorKind::internal, "internal check failed at {}:{}: {} ({}); this is a bug, please report it with the log",
       base ? base + 1 : file, line, message, condition);
}

}  // namespace ananke
