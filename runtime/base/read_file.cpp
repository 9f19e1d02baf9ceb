#include "runtime/base/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "runtime/base/descriptor.h"

namespace ananke {
namespace {

// The system's reason; empty where all of it is in `text`. Sizes are not asked for: the kernel's own files have none.
std::string read_all(const std::filesystem::path& file, std::string& text) {
  // Without waiting for the other end, were it a pipe.
  const Descriptor open(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!open || ::fstat(open.get(), &status) != 0) return std::strerror(errno);
  if (S_ISDIR(status.st_mode)) return "it is a folder";
  if (!S_ISREG(status.st_mode)) return "it is no file";
  std::array<char, 65536> piece;
  for (;;) {
    const ssize_t got = ::read(open.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::strerror(errno);
    if (got == 0) return "";
    text.append(piece.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace

std::optional<std::string> read_file(const std::filesystem::path& file, std::string* why) {
  std::string text, reason = read_all(file, text);
  if (reason.empty()) return text;
  if (why != nullptr) *why = std::move(reason);
  return std::nullopt;
}

std::string read_file(const std::filesystem::path& file, ErrorKind kind) {
  std::string why;
  std::optional<std::string> text = read_file(file, &why);
  if (!text) fail(kind, "cannot read {}: {}", file.string(), why);
  return *std::move(text);
}

}  // namespace ananke
