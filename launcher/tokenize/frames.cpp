#include "launcher/tokenize/frames.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace tokenize {
namespace {

// Grows as bytes come, so that a damaged count does not become a huge allocation.
template <class Buffer>
bool read_frame(std::FILE* in, Buffer& out) {
  constexpr std::size_t unit = sizeof(typename Buffer::value_type);
  constexpr std::size_t step = (std::size_t{1} << 20) / unit;
  out.clear();
  std::uint32_t count = 0;
  const std::size_t head = std::fread(&count, 1, sizeof count, in);
  if (head == 0 && std::feof(in)) return false;
  if (head != sizeof count) throw std::runtime_error("the input ends inside the length of a frame");
  while (out.size() < count) {
    const std::size_t begin = out.size();
    const std::size_t now = std::min<std::size_t>(step, count - begin);
    out.resize(begin + now);
    if (std::fread(out.data() + begin, unit, now, in) != now) {
      throw std::runtime_error("the input ends inside a frame of " + std::to_string(count));
    }
  }
  return true;
}

void write_frame(std::FILE* out, const void* data, std::size_t count, std::size_t unit) {
  if (count > std::numeric_limits<std::uint32_t>::max()) throw std::runtime_error("an answer is too long for a frame");
  const auto head = static_cast<std::uint32_t>(count);
  const bool written = std::fwrite(&head, sizeof head, 1, out) == 1 &&
                       (count == 0 || std::fwrite(data, unit, count, out) == count);
  if (!written) {
    throw std::runtime_error(std::string("cannot write an answer: ") + std::strerror(errno));
  }
}

}  // namespace

bool read_text(std::FILE* in, std::string& out) { return read_frame(in, out); }
bool read_tokens(std::FILE* in, std::vector<int>& out) { return read_frame(in, out); }
void write_text(std::FILE* out, const std::string& text) { write_frame(out, text.data(), text.size(), 1); }
void write_tokens(std::FILE* out, const std::vector<int>& tokens) {
  write_frame(out, tokens.data(), tokens.size(), sizeof(int));
}

}  // namespace tokenize
