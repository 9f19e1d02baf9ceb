// Documents made from a seed, so that a job needs no file: an order-1 Markov chain over the vocabulary in which each
// token has `branches` successors, equally likely, so that no model gets below ln(branches) nats per token for long.
// Every token is a pure function of (seed, split, document, place).
#pragma once

#include "runtime/base/random.h"
#include "runtime/data/document_source.h"

namespace ananke {

class GeneratedTokens;

class GeneratedDocuments : public DocumentSource {
 public:
  // Throws Error(config) where shortest > longest or branches > vocabulary_size.
  GeneratedDocuments(const GeneratedTokens& config, std::uint64_t documents, std::uint64_t vocabulary_size,
                     std::uint64_t seed, Split split);
  std::string name() const override { return "generated tokens"; }
  std::string identity() const override;
  std::uint64_t documents() const noexcept override { return documents_; }
  std::uint64_t length(std::uint64_t document) const noexcept override;
  void read(std::uint64_t document, std::uint64_t begin, std::span<std::int32_t> out) const override;
  // Successor `branch` of a token; for one token all are different.
  std::int32_t successor(std::int32_t token, std::uint64_t branch) const noexcept;

 private:
  std::uint64_t documents_;
  std::uint64_t shortest_;
  std::uint64_t longest_;
  std::uint64_t branches_;
  std::uint64_t vocabulary_size_;
  std::uint64_t seed_;
  Split split_;
  RandomKey chain_;  // the same for both splits
  RandomKey split_key_;
};

}  // namespace ananke
