#include "tests/fuzz/target.h"

#include <fcntl.h>

namespace ananke::fuzz {
namespace {

constexpr std::size_t longest_message = 17 << 10;

// Bytes of the well-formed character that the text begins with; 0: none does. Unicode 15, table 3-7.
std::size_t character_bytes(std::string_view text) {
  const auto at = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto tail = [&](std::size_t i) { return (at(i) & 0xC0U) == 0x80U; };
  const unsigned first = at(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first < 0xE0) return tail(1) ? 2 : 0;
  if (first >= 0xE0 && first < 0xF0) {
    const bool good = tail(1) && tail(2) && (first != 0xE0 || at(1) >= 0xA0) && (first != 0xED || at(1) < 0xA0);
    return good ? 3 : 0;
  }
  if (first < 0xF0 || first > 0xF4) return 0;
  const bool good =
      tail(1) && tail(2) && tail(3) && (first != 0xF0 || at(1) >= 0x90) && (first != 0xF4 || at(1) < 0x90);
  return good ? 4 : 0;
}

bool printable(std::string_view text) {
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text.front());
    const std::size_t bytes = character_bytes(text);
    if (bytes == 0 || (first < 0x20 && first != '\n' && first != '\t') || first == 0x7F) return false;
    if (first == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0)
      return false;  // control characters U+0080 to U+009F
    text.remove_prefix(bytes);
  }
  return true;
}

}  // namespace

void check_message(const Error& error, ErrorKind kind, std::string_view object) {
  const std::string_view text = error.what();
  if (error.kind() != kind) {
    fault(fmt::format("an Error of kind {} where {} is due: {}", name_of(error.kind()), name_of(kind), text));
  }
  if (text.empty() || text.size() > longest_message) fault(fmt::format("a message of {} bytes", text.size()));
  if (!printable(text)) fault(fmt::format("a message that is not text: {}", text));
  if (text.find(object) == std::string_view::npos)
    fault(fmt::format("a message that does not name {}: {}", object, text));
}

Folder::Folder() {
  const std::filesystem::path memory = "/dev/shm";
  std::error_code ignored;
  const bool in_memory = std::filesystem::is_directory(memory, ignored) && ::access(memory.c_str(), W_OK) == 0;
  std::string pattern = ((in_memory ? memory : std::filesystem::temp_directory_path()) / "ananke-fuzz-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) fault("no folder can be made: " + pattern);
  path_ = pattern;
}

Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path Folder::write(const std::string& name, std::string_view bytes) const {
  std::filesystem::path file = path_ / name;
  const int descriptor = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const bool written =
      descriptor >= 0 && ::write(descriptor, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
  if (!written || ::close(descriptor) != 0) fault("cannot write " + file.string());
  return file;
}

}  // namespace ananke::fuzz
