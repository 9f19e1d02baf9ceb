// The token store: documents as one long array of token ids, in one HDF5 file that h5py reads in two lines:
//   f = h5py.File(path); o = f["document_offsets"]; f["tokens"][o[i]:o[i+1]]
//
// Root attributes: format "ananke-token-store", version 1, tokenizer, tokenizer_hash, eos_id (-1: none),
// vocabulary_size, source (what was imported), source_hash, source_bytes (text, without what the tokenizer added).
// tokens: 1-D, the smallest of u8/u16/u32 that holds the vocabulary. document_offsets: u64, documents + 1 of them, from
// 0; tokenizer_model: u8, the SentencePiece model where there is one. The first two are chunked, every chunk with a
// checksum; file metadata in the format of HDF5 1.10, which has checksums too.
// A store that another program wrote is read when its superblock has version 3 (h5py: libver="latest"), its text has a
// fixed length (numpy.bytes_) and its datasets are in the file itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ananke {

struct TokenStoreInfo {
  std::string tokenizer;
  std::string tokenizer_hash;
  std::int64_t eos_id = -1;
  std::uint64_t vocabulary_size = 0;  // 1 .. 2^31 - 1: ids are int32 in memory
  std::string source;
  std::string source_hash;
  std::uint64_t source_bytes = 0;
  // Counted by the writer.
  std::uint64_t documents = 0;
  std::uint64_t tokens = 0;
};

// Writes a store in bounded memory. Under a temporary name until finish(), which makes it durable and names it.
// Errors: data (a token outside the vocabulary), resource (the file system).
class TokenStoreWriter {
 public:
  TokenStoreWriter(const std::filesystem::path& path, std::string tokenizer, std::string tokenizer_hash,
                   std::int64_t eos_id, std::uint64_t vocabulary_size);
  ~TokenStoreWriter();
  TokenStoreWriter(const TokenStoreWriter&) = delete;
  TokenStoreWriter& operator=(const TokenStoreWriter&) = delete;
  void append(std::span<const std::int32_t> tokens);  // to the document that is being written
  void end_document();
  // Keeps the tokenizer's definition in the store; tokenizer_hash is its hash.
  void keep_tokenizer(std::string_view model);
  void finish(const std::string& source, const std::string& source_hash, std::uint64_t source_bytes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Reads a store. Opening checks the file's length, form, attributes and reads all offsets once; of these, at most
// `index_memory` bytes stay in memory (8 a document), others are read again when asked for. Tokens are read when asked
// for, and checked then. Errors: Error(data) naming the file. Reads of several threads take turns.
class TokenStore {
 public:
  static constexpr std::size_t default_index_memory = std::size_t{128} << 20;
  explicit TokenStore(const std::filesystem::path& path, std::size_t index_memory = default_index_memory);
  ~TokenStore();
  TokenStore(TokenStore&&) noexcept;
  const std::string& path() const noexcept;
  const TokenStoreInfo& info() const noexcept;
  // The tokenizer's definition (a SentencePiece model); empty where the store has none.
  std::string tokenizer_model() const;
  // Tokens of a document, the end-of-document token included.
  std::uint64_t length(std::uint64_t document) const;
  // Tokens that have one before them in their document.
  std::uint64_t targets() const noexcept;
  // Tokens [begin, begin + out.size()) of a document.
  void read(std::uint64_t document, std::uint64_t begin, std::span<std::int32_t> out) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ananke
