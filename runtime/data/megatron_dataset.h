// Megatron-LM's indexed data sets, NAME.idx and NAME.bin, as megatron/core/datasets/indexed_dataset.py writes them. All
// numbers in little endian:
//   "MMIDIDX\0\0", u64 version 1, u8 type of the tokens, u64 sequences, u64 offsets of documents,
//   i32 length of every sequence, i64 place of every sequence in NAME.bin in bytes,
//   i64 first sequence of every document, and their number at the end
// Read front to back in bounded memory. Nothing in the files is believed before it is checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace ananke {

class MegatronDataset {
 public:
  // `path`: NAME.idx, NAME.bin or NAME. Throws Error(data) naming the file and what is wrong.
  explicit MegatronDataset(const std::filesystem::path& path);
  ~MegatronDataset();
  const std::string& index_path() const noexcept;
  const std::string& data_path() const noexcept;
  std::uint64_t documents() const noexcept;
  std::uint64_t data_bytes() const noexcept;  // of NAME.bin
  std::uint64_t bytes_read() const noexcept;

  // Some tokens more, into `out`, of one document; `count` says how many, perhaps none where a document ends. False:
  // there are no more documents. Throws Error(data), also for a token that is not in [0, vocabulary_size).
  struct Part {
    std::size_t count = 0;
    bool ends_document = false;
  };
  bool next(std::uint64_t vocabulary_size, std::span<std::int32_t> out, Part& part);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ananke
