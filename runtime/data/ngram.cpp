#include "runtime/data/ngram.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

#include "runtime/base/error.h"

namespace ananke {
namespace {

// Calls visit(token before or -1, token) for every token of every document.
template <class Visit>
void for_each_token(const DocumentSource& source, Visit visit) {
  std::vector<std::int32_t> piece(std::size_t{64} << 10);
  for (std::uint64_t document = 0; document < source.documents(); ++document) {
    std::int32_t before = -1;
    const std::uint64_t length = source.length(document);
    for (std::uint64_t begin = 0; begin < length;) {
      const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), length - begin));
      source.read(document, begin, {piece.data(), count});
      for (std::size_t i = 0; i < count; ++i) {
        visit(before, piece[i]);
        before = piece[i];
      }
      begin += count;
    }
  }
}

std::uint64_t pair_of(std::int32_t a, std::int32_t b) {
  return static_cast<std::uint64_t>(a) << 32 | static_cast<std::uint32_t>(b);
}

class Bigrams {
 public:
  Bigrams(const DocumentSource& train, std::uint64_t vocabulary_size)
      : single_(vocabulary_size), after_(vocabulary_size), kinds_(vocabulary_size) {
    for_each_token(train, [&](std::int32_t before, std::int32_t token) {
      ++tokens_;
      ++single_[static_cast<std::size_t>(token)];
      if (before < 0) return;
      ++after_[static_cast<std::size_t>(before)];
      if (pairs_[pair_of(before, token)]++ == 0) ++kinds_[static_cast<std::size_t>(before)];
    });
  }
  std::uint64_t tokens() const { return tokens_; }
  double unigram(std::int32_t token) const {
    return (static_cast<double>(single_[static_cast<std::size_t>(token)]) + 1) /
           static_cast<double>(tokens_ + single_.size());
  }
  double bigram(std::int32_t before, std::int32_t token) const {
    const auto a = static_cast<std::size_t>(before);
    if (after_[a] == 0) return unigram(token);
    const auto found = pairs_.find(pair_of(before, token));
    const double seen = found == pairs_.end() ? 0 : static_cast<double>(found->second);
    const auto kinds = static_cast<double>(kinds_[a]);
    return (seen + kinds * unigram(token)) / (static_cast<double>(after_[a]) + kinds);
  }

 private:
  std::uint64_t tokens_ = 0;
  std::vector<std::uint64_t> single_;
  std::vector<std::uint64_t> after_;
  std::vector<std::uint64_t> kinds_;
  std::unordered_map<std::uint64_t, std::uint64_t> pairs_;
};

}  // namespace

NgramEntropies ngram_entropies(const DocumentSource& train, const DocumentSource& held_out,
                               std::uint64_t vocabulary_size) {
  const Bigrams model(train, vocabulary_size);
  std::unordered_map<std::uint64_t, std::uint64_t> targets;  // equal pairs cost the same: one logarithm each
  for_each_token(held_out, [&](std::int32_t before, std::int32_t token) {
    if (before >= 0) ++targets[pair_of(before, token)];
  });
  NgramEntropies result;
  result.train_tokens = model.tokens();
  for (const auto& [pair, times] : targets) {
    const auto before = static_cast<std::int32_t>(pair >> 32);
    const auto token = static_cast<std::int32_t>(pair & 0xFFFFFFFFU);
    const auto count = static_cast<double>(times);
    result.targets += times;
    result.unigram -= count * std::log(model.unigram(token));
    result.bigram -= count * std::log(model.bigram(before, token));
  }
  if (result.targets == 0) fail(ErrorKind::data, "{} has no document of two tokens or more to score", held_out.name());
  result.unigram /= static_cast<double>(result.targets);
  result.bigram /= static_cast<double>(result.targets);
  return result;
}

}  // namespace ananke
