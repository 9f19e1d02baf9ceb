// The other side of `ananke-tokenize` (launcher/tokenize/main.cpp says what travels): a child process that is fed over
// one socket, its standard input and output, and whose standard error is kept for messages.
//
// A tokenizer that cannot be started, dies, does not answer or answers nonsense becomes an Error with its last lines.
// For one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ananke {

struct TokenizerInfo;

class TokenizeProcess {
 public:
  static constexpr std::chrono::seconds usual_patience{120};  // without a byte either way; 0: for ever

  // Starts it and, unless it trains, reads its first line.
  TokenizeProcess(const std::filesystem::path& program, const std::vector<std::string>& arguments,
                  std::chrono::seconds patience = usual_patience);
  ~TokenizeProcess();  // kills it
  TokenizeProcess(const TokenizeProcess&) = delete;
  TokenizeProcess& operator=(const TokenizeProcess&) = delete;

  const TokenizerInfo& info() const noexcept;
  void encode(std::span<const std::string_view> texts, std::vector<std::int32_t>& tokens,
              std::vector<std::size_t>& ends);
  std::string decode(std::span<const std::int32_t> tokens);

  // Takes one text to train on; train() ends the input and returns the model.
  void feed(std::string_view text);
  std::string train();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ananke
