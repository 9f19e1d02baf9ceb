// Text to tokens on several threads, handed over in the reader's order: what comes out does not depend on how many.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/text_reader.h"
#include "runtime/data/tokenizer.h"

namespace ananke {

struct TokenBatch {
  struct Piece {
    std::size_t end = 0;  // in `tokens`
    std::uint64_t text_bytes = 0;
    bool ends_document = false;
  };
  std::vector<std::int32_t> tokens;  // end-of-document tokens included
  std::vector<Piece> pieces;
  std::uint64_t bytes_on_disk = 0;  // as in the TextBatch
};

// One thread reads, one for each tokenizer computes, the caller's writes. About two batches a tokenizer are in memory.
// Throws the first error in the reader's order (the same for any number of tokenizers), or what `write` throws.
void tokenize_in_order(TextReader& reader, std::span<const std::unique_ptr<Tokenizer>> tokenizers,
                       const std::string& field, const std::function<void(const TokenBatch&)>& write);

}  // namespace ananke
