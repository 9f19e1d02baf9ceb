// Tokens on their way into a store, and stores into one by weight.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/data/import_documents.h"
#include "runtime/data/token_store.h"

namespace ananke {

using FileHandle = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

// A writer that counts and, where asked, remembers in a nameless file how many bytes of text each document has.
class StoreSink {
 public:
  StoreSink(const std::filesystem::path& path, const std::string& tokenizer, const std::string& tokenizer_hash,
            std::int64_t eos_id, std::uint64_t vocabulary_size, bool keep_bytes);
  void append(std::span<const std::int32_t> tokens, std::uint64_t text_bytes);
  void end_document();
  void keep_tokenizer(std::string_view model) { writer_.keep_tokenizer(model); }
  void finish(const std::string& source, const std::string& source_hash);
  FileHandle take_document_bytes();

  std::uint64_t documents() const noexcept { return documents_; }
  std::uint64_t tokens() const noexcept { return tokens_; }
  std::uint64_t text_bytes() const noexcept { return text_bytes_; }
  // Tokens that have one before them in their document; of documents that have ended.
  std::uint64_t targets() const noexcept { return targets_; }

 private:
  TokenStoreWriter writer_;
  FileHandle document_bytes_;
  std::uint64_t documents_ = 0;
  std::uint64_t tokens_ = 0;
  std::uint64_t text_bytes_ = 0;
  std::uint64_t counted_bytes_ = 0;   // of documents that have ended
  std::uint64_t counted_tokens_ = 0;  // the same
  std::uint64_t targets_ = 0;
};

// A source that is tokenized; its store loses its name at once, so that nothing is left of it whatever happens.
class MixedSource {
 public:
  MixedSource(std::filesystem::path path, double weight, const std::filesystem::path& store, FileHandle document_bytes);
  const std::filesystem::path& path() const noexcept { return path_; }
  double weight() const noexcept { return weight_; }
  std::uint64_t tokens() const noexcept { return store_.info().tokens; }
  std::uint64_t documents() const noexcept { return store_.info().documents; }
  // Documents of the last, partial round: bit by bit, and in a seeded order up to the one that reaches `tokens`.
  std::vector<bool> choose(std::uint64_t tokens, const RandomKey& order) const;
  // All documents, or those `chosen`, in the store's order. `each` is called behind each.
  void write(const std::vector<bool>* chosen, StoreSink& sink, const std::function<void(std::uint64_t tokens)>& each);

 private:
  std::filesystem::path path_;
  double weight_;
  TokenStore store_;
  FileHandle document_bytes_;
};

// import_documents.h says by which rule.
ImportResult mix_stores(std::span<MixedSource> sources, std::uint64_t seed, StoreSink& sink,
                        const ReportImport& report);

}  // namespace ananke
