// Text to tokens and back.
//   "bytes":     a token is a byte (ids 0 to 255), token 256 ends a document; vocabulary 257
//   a file name: that SentencePiece model, run by `ananke-tokenize` in a process of its own
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ananke {

struct TokenizerInfo {
  std::string name;  // bytes or sentencepiece
  std::string hash;  // of its whole definition: equal hashes make equal tokens
  std::int64_t eos_id = -1;
  std::uint64_t vocabulary_size = 0;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual const TokenizerInfo& info() const = 0;
  // Appends the tokens of every text to `tokens`, and to `ends` how many there are then. Adds no end-of-document token.
  virtual void encode(std::span<const std::string_view> texts, std::vector<std::int32_t>& tokens,
                      std::vector<std::size_t>& ends) = 0;
  virtual std::string decode(std::span<const std::int32_t> tokens) = 0;
};

// Where `ananke-tokenize` is: $ANANKE_TOKENIZE, or beside this program (or in ../bin from there).
std::filesystem::path tokenize_program();

// Throws Error(data) where the model cannot be used, Error(resource) where the process cannot be started.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name,
                                          const std::filesystem::path& program = tokenize_program());

// The same for a model in memory, such as a token store keeps; no file is left behind.
std::unique_ptr<Tokenizer> make_tokenizer_of_model(std::string_view model,
                                                   const std::filesystem::path& program = tokenize_program());

}  // namespace ananke
