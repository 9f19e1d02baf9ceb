#include "tests/fuzz/engine/mutator.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>

namespace ananke::fuzz {
namespace {

constexpr std::size_t widths[] = {1, 2, 4, 8};

std::uint64_t load(const char* from, std::size_t width, bool big) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < width; ++i) {
    const std::size_t at = big ? i : width - 1 - i;
    value = value << 8 | static_cast<unsigned char>(from[at]);
  }
  return value;
}

void store(char* to, std::size_t width, bool big, std::uint64_t value) {
  for (std::size_t i = 0; i < width; ++i) {
    const std::size_t at = big ? width - 1 - i : i;
    to[at] = static_cast<char>(value >> 8 * i & 0xFF);
  }
}

}  // namespace

std::uint64_t Random::next() noexcept {
  state_ ^= state_ >> 12;
  state_ ^= state_ << 25;
  state_ ^= state_ >> 27;
  return state_ * 0x2545F4914F6CDD1DULL >> 8;
}

void Mutator::mutate(std::string& input, std::string_view other, std::span<const Compared> compared) {
  do {
    change(input, other, compared);
  } while (!random_.one_in(3));
  if (input.size() > longest_) input.resize(longest_);
}

void Mutator::change(std::string& input, std::string_view other, std::span<const Compared> compared) {
  switch (random_.below(12)) {
    case 0:
    case 1: return change_byte(input);
    case 2:
    case 3: return change_number(input);
    case 4: return change_digits(input);
    case 5: return change_compared(input, compared);
    case 6:
    case 7: return change_piece(input);
    case 8:
    case 9: return put_word(input);
    case 10: return splice(input, other);
    default: input.resize(random_.one_in(4) ? random_.below(input.size() + 1) : input.size() - input.size() / 8);
  }
}

void Mutator::change_byte(std::string& input) {
  if (input.empty()) return insert(input, "0");
  char& byte = input[random_.below(input.size())];
  static constexpr std::string_view favourites("\0\x01\x7f\x80\xff \n\"\\{}[]:,.-0", 18);
  switch (random_.below(3)) {
    case 0: byte = static_cast<char>(byte ^ 1 << random_.below(8)); break;
    case 1: byte = static_cast<char>(random_.next()); break;
    default: byte = favourites[random_.below(favourites.size())];
  }
}

// Also what the input itself could mean: its size, less what went before.
std::uint64_t Mutator::interesting_number(std::size_t size) {
  const std::uint64_t near = random_.below(3) - 1;
  switch (random_.below(6)) {
    case 0: return near;  // -1, 0, 1
    case 1: return (std::uint64_t{1} << random_.below(64)) + near;
    case 2: return size - random_.below(64);
    case 3: return size / (1 + random_.below(16)) + near;
    case 4: return 0x7FFFFFFFFFFFFFFFULL >> 8 * random_.below(8);
    default: return random_.next() >> random_.below(56);
  }
}

void Mutator::change_number(std::string& input) {
  const std::size_t width = widths[random_.below(4)];
  if (input.size() < width) return change_byte(input);
  // Fields are mostly aligned.
  std::size_t at = random_.below(input.size() - width + 1);
  if (random_.one_in(2)) at -= at % width;
  const bool big = random_.one_in(4);
  const std::uint64_t value = load(&input[at], width, big);
  const bool shift = random_.one_in(2);
  store(&input[at], width, big, shift ? value + random_.below(65) - 32 : interesting_number(input.size()));
}

// A number as text: another one in its place.
void Mutator::change_digits(std::string& input) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto from = input.begin() + static_cast<std::ptrdiff_t>(random_.below(input.size() + 1));
  const auto begin = std::find_if(from, input.end(), is_digit);
  if (begin == input.end()) return change_byte(input);
  const auto end = std::find_if_not(begin, input.end(), is_digit);
  std::uint64_t value = 0;
  std::from_chars(&*begin, &*begin + (end - begin), value);
  std::string text =
      std::to_string(random_.one_in(3) ? value + random_.below(9) - 4 : interesting_number(input.size()));
  switch (random_.below(10)) {
    case 0: text = "-" + text; break;
    case 1: text += ".5"; break;
    case 2: text += "e" + std::to_string(random_.below(400)); break;
    case 3: text += std::string(random_.below(30), '0'); break;
    default: break;
  }
  input.replace(begin, end, text);
}

// One side of a comparison becomes the other, wherever it stands in the input, in binary or as text.
void Mutator::change_compared(std::string& input, std::span<const Compared> compared) {
  if (compared.empty() || input.empty()) return change_byte(input);
  Compared pair = compared[random_.below(compared.size())];
  if (random_.one_in(2)) std::swap(pair.left, pair.right);
  pair.right += random_.one_in(4) ? random_.below(3) - 1 : 0;
  std::string from(pair.bytes, '\0');
  std::string to(pair.bytes, '\0');
  const bool big = random_.one_in(4);
  store(from.data(), pair.bytes, big, pair.left);
  store(to.data(), pair.bytes, big, pair.right);
  if (random_.one_in(4)) {
    from = std::to_string(pair.left);
    to = std::to_string(pair.right);
  }
  std::size_t at = input.find(from, random_.below(input.size()));
  if (at == std::string::npos) at = input.find(from);
  if (at != std::string::npos) input.replace(at, from.size(), to);
}

// A piece is lost, doubled, moved or written over another; half the time whole lines.
void Mutator::change_piece(std::string& input) {
  if (input.empty()) return;
  std::size_t begin = random_.below(input.size());
  std::size_t end =
      begin + 1 + random_.below(std::min<std::size_t>(input.size() - begin, random_.one_in(3) ? 512 : 16));
  if (random_.one_in(2)) {
    const std::size_t line = input.rfind('\n', begin);
    begin = line == std::string::npos ? begin : line;
    end = std::max(begin + 1, std::min(input.find('\n', end), input.size()));
  }
  const std::string piece = input.substr(begin, end - begin);
  switch (random_.below(4)) {
    case 0: input.erase(begin, piece.size()); break;
    case 1: insert(input, piece); break;
    case 2:
      for (std::size_t i = random_.below(random_.one_in(8) ? 200 : 8); i > 0 && input.size() < longest_; --i) {
        input.insert(begin, piece);
      }
      break;
    default: input.replace(random_.below(input.size()), piece.size(), piece);
  }
}

void Mutator::insert(std::string& input, std::string_view piece) {
  input.insert(random_.below(input.size() + 1), piece);
}

void Mutator::put_word(std::string& input) {
  if (dictionary_.empty()) return insert(input, std::string(1 + random_.below(16), static_cast<char>(random_.next())));
  const std::string& word = dictionary_[random_.below(dictionary_.size())];
  if (random_.one_in(2) || input.size() < word.size()) return insert(input, word);
  // In the place of another word, where there is one: of letters and signs such as names have.
  std::size_t begin = random_.below(input.size() - word.size() + 1);
  std::size_t end = begin + word.size();
  const auto is_name = [&](std::size_t i) {
    return std::isalnum(static_cast<unsigned char>(input[i])) || input[i] == '_';
  };
  if (random_.one_in(2) && is_name(begin)) {
    while (begin > 0 && is_name(begin - 1)) --begin;
    end = begin;
    while (end < input.size() && is_name(end)) ++end;
  }
  input.replace(begin, end - begin, word);
}

void Mutator::splice(std::string& input, std::string_view other) {
  if (other.empty()) return;
  const std::size_t from = random_.below(other.size());
  if (random_.one_in(2)) {
    input.resize(random_.one_in(2) ? std::min(from, input.size()) : random_.below(input.size() + 1));
    input += other.substr(from);
  } else {
    insert(input, other.substr(from, 1 + random_.below(64)));
  }
}

std::vector<std::string> parse_dictionary(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::size_t open = line.find('"');
    const std::size_t close = line.rfind('"');
    if (line.starts_with('#') || open == close) continue;
    std::string word;
    for (std::size_t i = open + 1; i < close; ++i) {
      unsigned code = 0;
      if (line[i] != '\\') {
        word += line[i];
      } else if (line[i + 1] == 'x' && i + 3 < close) {
        std::from_chars(&line[i + 2], &line[i + 4], code, 16);
        word += static_cast<char>(code);
        i += 3;
      } else {
        word += line[++i];
      }
    }
    words.push_back(std::move(word));
  }
  return words;
}

}  // namespace ananke::fuzz
