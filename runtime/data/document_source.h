// Where documents come from: a token store, or a chain of tokens made from the job's seed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace ananke {

class HeldOut;
class Job;

class DocumentSource {
 public:
  virtual ~DocumentSource() = default;
  virtual std::string name() const = 0;      // for messages
  virtual std::string identity() const = 0;  // equal for equal documents: binds resumable positions; has no spaces
  virtual std::uint64_t documents() const noexcept = 0;
  // Tokens of a document; cheap. Throws Error(data) where the index cannot be read.
  virtual std::uint64_t length(std::uint64_t document) const = 0;
  // Tokens that have one before them in their document. Here: walks all lengths.
  virtual std::uint64_t targets() const;
  // Tokens [begin, begin + out.size()) of a document. Throws Error(data) where they cannot be read.
  virtual void read(std::uint64_t document, std::uint64_t begin, std::span<std::int32_t> out) const = 0;
  // Which tokenizer made it, for messages and to be compared; empty: none.
  virtual std::string tokenizer() const { return {}; }
  // UTF-8 (or other) bytes of the text behind all documents; 0: unknown. For losses in bits per byte.
  virtual std::uint64_t text_bytes() const noexcept { return 0; }
};

// `vocabulary_size` is the model's: a store with more tokens than that is refused, Error(config).
std::unique_ptr<DocumentSource> open_token_store(const std::filesystem::path& path, std::uint64_t vocabulary_size);

// What the job trains on (`data`). Throws Error(config) where that names both a store and generated tokens, or neither.
std::unique_ptr<DocumentSource> training_documents(const Job& job);

// One of the sets that the job is evaluated on. Throws as above; errors open with the set's name.
std::unique_ptr<DocumentSource> held_out_documents(const Job& job, const HeldOut& set);

}  // namespace ananke
