// Where documents come from: a token store, or a chain of tokens made from the job's seed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace ananke {

class Job;

enum class Split { train, held_out };

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
  // UTF-8 (or other) bytes of the text behind all documents; 0: unknown. For losses in bits per byte.
  virtual std::uint64_t text_bytes() const noexcept { return 0; }
};

// `vocabulary_size` is the model's: a store with more tokens than that is refused, Error(config).
std::unique_ptr<DocumentSource> open_token_store(const std::filesystem::path& path, std::uint64_t vocabulary_size);

// What the job trains on (`data`) or is evaluated on (`evaluation`). Null: the job has no evaluation. Throws
// Error(config) where the job names both a store and generated tokens, or neither.
std::unique_ptr<DocumentSource> make_document_source(const Job& job, Split split);

}  // namespace ananke
