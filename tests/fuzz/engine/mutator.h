// Makes new inputs of old ones: what files suffer (flipped bits, cuts, pieces lost, doubled and moved) and what a
// reader trusts (lengths, counts, offsets, names). A function of the seed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/engine/coverage.h"

namespace ananke::fuzz {

class Random {  // xorshift64*
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ULL + 0x2545F4914F6CDD1DULL) {}
  std::uint64_t next() noexcept;
  std::size_t below(std::size_t bound) noexcept { return bound == 0 ? 0 : next() % bound; }
  bool one_in(std::size_t chances) noexcept { return below(chances) == 0; }

 private:
  std::uint64_t state_;
};

class Mutator {
 public:
  Mutator(std::uint64_t seed, std::vector<std::string> dictionary, std::size_t longest)
      : random_(seed), dictionary_(std::move(dictionary)), longest_(longest) {}

  // Some changes, one after another. `other` is another input, to take pieces from; `compared` what the reader compared
  // when it read this one.
  void mutate(std::string& input, std::string_view other, std::span<const Compared> compared);
  Random& random() noexcept { return random_; }

 private:
  void change(std::string& input, std::string_view other, std::span<const Compared> compared);
  void change_byte(std::string& input);
  void change_number(std::string& input);
  void change_digits(std::string& input);
  void change_compared(std::string& input, std::span<const Compared> compared);
  void change_piece(std::string& input);
  void insert(std::string& input, std::string_view piece);
  void put_word(std::string& input);
  void splice(std::string& input, std::string_view other);
  std::uint64_t interesting_number(std::size_t size);

  Random random_;
  std::vector<std::string> dictionary_;
  std::size_t longest_;
};

// Words in the format of AFL and libFuzzer: one a line, "in quotes", with \" \\ and \xNN; # begins a comment.
std::vector<std::string> parse_dictionary(std::string_view text);

}  // namespace ananke::fuzz
