#include "runtime/data/tokenizer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/control/socket.h"
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

// A file in memory, which the processes open by the path of its descriptor.
Descriptor file_of_model(std::string_view model) {
  Descriptor file(::memfd_create("tokenizer model", MFD_CLOEXEC));
  for (std::size_t at = 0; file && at < model.size();) {
    const ssize_t wrote = ::write(file.get(), model.data() + at, model.size() - at);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) break;
    at += static_cast<std::size_t>(wrote);
  }
  if (!file || ::lseek(file.get(), 0, SEEK_END) != static_cast<off_t>(model.size())) {
    fail(ErrorKind::resource, "cannot keep a tokenizer of {} bytes in memory: {}", model.size(), std::strerror(errno));
  }
  return file;
}

std::string path_of(const Descriptor& file) { return fmt::format("/proc/{}/fd/{}", ::getpid(), file.get()); }

class SentencePieceInMemory : public Tokenizer {
 public:
  SentencePieceInMemory(std::string_view model, const std::filesystem::path& program)
      : file_(file_of_model(model)), inner_(path_of(file_), program) {}
  const TokenizerInfo& info() const override { return inner_.info(); }
  void encode(std::span<const std::string_view> texts, std::vector<std::int32_t>& tokens,
              std::vector<std::size_t>& ends) override {
    inner_.encode(texts, tokens, ends);
  }
  std::string decode(std::span<const std::int32_t> tokens) override { return inner_.decode(tokens); }

 private:
  Descriptor file_;
  SentencePiece inner_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer_of_model(std::string_view model, const std::filesystem::path& program) {
  return std::make_unique<SentencePieceInMemory>(model, program);
}

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
