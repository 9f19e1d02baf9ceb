#include "runtime/data/tokenizer.h"

#include <algorithm>
#include <cstdlib>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/data/tokenize_process.h"

namespace ananke {
namespace {

constexpr std::int32_t bytes_end = 256;

class Bytes : public Tokenizer {
 public:
  const TokenizerInfo& info() const override { return info_; }

  void encode(std::span<const std::string_view> texts, std::vector<std::int32_t>& tokens,
              std::vector<std::size_t>& ends) override {
    for (const std::string_view text : texts) {
      const std::size_t begin = tokens.size();
      tokens.resize(begin + text.size());
      std::transform(text.begin(), text.end(), tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                     [](char c) { return static_cast<unsigned char>(c); });
      ends.push_back(tokens.size());
    }
  }

  std::string decode(std::span<const std::int32_t> tokens) override {
    std::string text;
    for (const std::int32_t token : tokens) {
      if (token < 0 || token > bytes_end) fail(ErrorKind::data, "token {} is not one of the tokenizer bytes", token);
      if (token < bytes_end) text += static_cast<char>(token);
    }
    return text;
  }

 private:
  TokenizerInfo info_{"bytes", hash_hex("bytes: ids are byte values; 256 ends a document"), bytes_end, bytes_end + 1};
};

class SentencePiece : public Tokenizer {
 public:
  SentencePiece(std::string model, std::filesystem::path program)
      : model_(std::move(model)), program_(std::move(program)), encoder_(program_, {"--model", model_}) {}
  const TokenizerInfo& info() const override { return encoder_.info(); }

  void encode(std::span<const std::string_view> texts, std::vector<std::int32_t>& tokens,
              std::vector<std::size_t>& ends) override {
    encoder_.encode(texts, tokens, ends);
  }

  std::string decode(std::span<const std::int32_t> tokens) override {
    if (!decoder_) {
      decoder_ = std::make_unique<TokenizeProcess>(program_, std::vector<std::string>{"--model", model_, "--decode"});
    }
    return decoder_->decode(tokens);
  }

 private:
  std::string model_;
  std::filesystem::path program_;
  TokenizeProcess encoder_;
  std::unique_ptr<TokenizeProcess> decoder_;
};

}  // namespace

std::filesystem::path tokenize_program() {
  if (const char* named = std::getenv("ANANKE_TOKENIZE")) return named;
  std::error_code problem;
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", problem).parent_path();
  const std::filesystem::path beside = folder / "ananke-tokenize";
  const std::filesystem::path installed = folder.parent_path() / "bin/ananke-tokenize";
  return !std::filesystem::exists(beside, problem) && std::filesystem::exists(installed, problem) ? installed : beside;
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name, const std::filesystem::path& program) {
  if (name == "bytes") return std::make_unique<Bytes>();
  std::error_code problem;
  if (!std::filesystem::is_regular_file(name, problem)) {
    fail(ErrorKind::data, "there is no tokenizer '{}': name a SentencePiece model's file, or bytes", name);
  }
  return std::make_unique<SentencePiece>(name, program);
}

}  // namespace ananke
