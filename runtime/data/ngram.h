// What a unigram and a bigram model reach on held-out documents: the bar a trained model must clear. Estimated on the
// training documents, scored on every held-out token but each document's first, which are the targets of an evaluation.
//   unigram: add one.                  p(b)   = (count(b) + 1) / (tokens + vocabulary)
//   bigram: Witten-Bell interpolation. p(b|a) = (count(a b) + kinds(a) p(b)) / (count(a .) + kinds(a)),
//   kinds(a): how many different tokens followed a; a token that nothing followed leaves the unigram.
// (Witten & Bell 1991; Chen & Goodman 1999, section 2.5.)
#pragma once

#include <cstdint>

#include "runtime/data/document_source.h"

namespace ananke {

struct NgramEntropies {
  std::uint64_t train_tokens = 0;
  std::uint64_t targets = 0;
  double unigram = 0;  // nats per target
  double bigram = 0;
};

// Throws Error(data) when the held-out documents have no target.
NgramEntropies ngram_entropies(const DocumentSource& train, const DocumentSource& held_out,
                               std::uint64_t vocabulary_size);

}  // namespace ananke
