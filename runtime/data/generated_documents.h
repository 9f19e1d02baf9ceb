// Documents made from a seed, so that a job needs no file: an order-1 Markov chain over the vocabulary in which each
// token has `branches` successors, equally likely, so that no model gets below ln(branches) nats per token for long.
// Every token is a pure function of (seed, part, document, place); parts share the chain and have documents of their
// own.
#pragma once

#include "runtime/base/random.h"
#include "runtime/data/document_source.h"

namespace ananke {

class GeneratedTokens;

class GeneratedDocuments : public DocumentSource {
 public:
  // `part`: "train", "held-out/NAME". Throws Error(config) where shortest > longest or branches > vocabulary_size.
  GeneratedDocuments(const GeneratedTokens& config, std::uint64_t documents, std::uint64_t vocabulary_size,
                     std::uint64_t seed, std::string part);
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
  std::string part_;
  RandomKey chain_;
  RandomKey part_key_;
};

}  // namespace ananke
