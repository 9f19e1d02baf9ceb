#include "runtime/base/printable.h"

#include <fmt/format.h>

#include <algorithm>

namespace ananke {
namespace {

bool is_plain(char c) { return (c >= 0x20 && c < 0x7F) || c == '\n' || c == '\t'; }

// U+0080 to U+009F are control characters too.
bool is_control(std::string_view character) {
  return character.size() == 1 ? !is_plain(character[0])
                               : character[0] == '\xC2' && static_cast<unsigned char>(character[1]) < 0xA0;
}

}  // namespace

// Unicode 15, table 3-7: the second byte's range depends on the first, so that nothing has two spellings.
std::size_t utf8_bytes(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto within = [&](std::size_t i, unsigned low, unsigned high) { return byte(i) >= low && byte(i) <= high; };
  const unsigned first = byte(0);
  if (first < 0x80) return text.empty() ? 0 : 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  const std::size_t bytes = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (!within(1, low, high)) return 0;
  for (std::size_t i = 2; i < bytes; ++i) {
    if (!within(i, 0x80, 0xBF)) return 0;
  }
  return bytes;
}

std::string printable(std::string_view text, std::size_t most) {
  std::string out;
  while (!text.empty() && out.size() < most) {
    const auto plain = static_cast<std::size_t>(std::find_if_not(text.begin(), text.end(), is_plain) - text.begin());
    const std::size_t now = std::min(plain, most - out.size());
    out += text.substr(0, now);
    text.remove_prefix(now);
    if (now < plain || text.empty() || out.size() >= most) break;
    const std::size_t bytes = std::max<std::size_t>(utf8_bytes(text), 1);
    const std::string_view character = text.substr(0, bytes);
    const bool broken = bytes == 1 || is_control(character);
    for (const char c : character)
      out += broken ? fmt::format("\\x{:02x}", static_cast<unsigned char>(c)) : std::string(1, c);
    text.remove_prefix(bytes);
  }
  if (!text.empty()) out += fmt::format("... ({} bytes more)", text.size());
  return out;
}

}  // namespace ananke
