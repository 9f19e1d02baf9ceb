#include "launcher/tokenize/sentence_pieces.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <stdexcept>

namespace tokenize {
namespace {

constexpr std::size_t longest_part = std::size_t{16} << 10;
constexpr std::size_t shortest_part = std::size_t{8} << 10;
constexpr std::size_t longest_line = 4096;  // SentencePiece's trainer passes over lines beyond 4192 bytes

void check(const sentencepiece::util::Status& status, const std::string& action) {
  if (!status.ok()) throw std::runtime_error("cannot " + action + ": " + status.ToString());
}

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

// Before the character at `at` begins, but not more than 3 bytes back.
std::size_t character_start(const std::string& text, std::size_t at) {
  for (std::size_t back = 0; back < 4 && back < at; ++back) {
    if (!continues_character(text[at - back])) return at - back;
  }
  return at;
}

class Lines : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(const std::vector<std::string>& documents) : documents_(documents) { Next(); }
  bool done() const override { return done_; }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }

  void Next() override {
    for (; document_ < documents_.size(); ++document_, at_ = 0) {
      const std::string& text = documents_[document_];
      while (at_ < text.size()) {
        std::size_t end = std::min(text.find('\n', at_), text.size());
        if (end - at_ > longest_line) end = character_start(text, at_ + longest_line);
        line_.assign(text, at_, end - at_);
        at_ = end < text.size() && text[end] == '\n' ? end + 1 : end;
        if (!line_.empty()) return;
      }
    }
    done_ = true;
  }

 private:
  const std::vector<std::string>& documents_;
  std::size_t document_ = 0;
  std::size_t at_ = 0;
  std::string line_;
  bool done_ = false;
};

}  // namespace

SentencePieces::SentencePieces(const std::string& serialized_model)
    : processor_(std::make_unique<sentencepiece::SentencePieceProcessor>()) {
  check(processor_->LoadFromSerializedProto(serialized_model), "use the model");
  std::vector<std::string> pieces;
  check(processor_->Encode("a", &pieces), "encode");
  adds_space_ = !pieces.empty() && pieces[0].rfind("\xE2\x96\x81", 0) == 0;  // U+2581 stands for a space
}

SentencePieces::~SentencePieces() = default;

int SentencePieces::vocabulary_size() const { return processor_->GetPieceSize(); }
int SentencePieces::eos_id() const { return processor_->eos_id(); }

// Where the part that begins at `begin` ends.
std::size_t SentencePieces::cut(const std::string& text, std::size_t begin, bool& drop_space) const {
  drop_space = false;
  if (text.size() - begin <= longest_part) return text.size();
  const std::size_t first = begin + shortest_part;
  std::size_t after_line = 0;
  for (std::size_t at = begin + longest_part; at > first; --at) {
    const bool lone_space = text[at] == ' ' && text[at - 1] > ' ' && text[at + 1] > ' ';
    if (adds_space_ && lone_space) {
      drop_space = true;
      return at;
    }
    if (!adds_space_ && text[at - 1] == '\n') return at;
    if (after_line == 0 && (text[at - 1] == '\n' || lone_space)) after_line = at;
  }
  return after_line > 0 ? after_line : character_start(text, begin + longest_part);
}

std::vector<int> SentencePieces::encode(const std::string& text) const {
  std::vector<int> tokens;
  std::vector<int> part;
  for (std::size_t begin = 0; begin < text.size();) {
    bool drop_space = false;
    const std::size_t end = cut(text, begin, drop_space);
    check(processor_->Encode(std::string_view(text).substr(begin, end - begin), &part), "encode");
    tokens.insert(tokens.end(), part.begin(), part.end());
    begin = end + (drop_space ? 1 : 0);
  }
  return tokens;
}

std::string SentencePieces::decode(const std::vector<int>& tokens) const {
  for (const int token : tokens) {
    if (token < 0 || token >= vocabulary_size()) {
      throw std::runtime_error("cannot decode token " + std::to_string(token) + ": the model has " +
                               std::to_string(vocabulary_size()));
    }
  }
  std::string text;
  check(processor_->Decode(tokens, &text), "decode");
  return text;
}

std::string train(const std::vector<std::string>& documents, int vocabulary_size, const std::string& type) {
  Lines lines(documents);
  if (lines.done()) throw std::runtime_error("there is no text to train a model on");
  std::string model;
  check(sentencepiece::SentencePieceTrainer::Train({{"model_prefix", ""},
                                                    {"model_type", type},
                                                    {"vocab_size", std::to_string(vocabulary_size)},
                                                    {"byte_fallback", "true"},
                                                    {"character_coverage", "0.9999"},
                                                    {"normalization_rule_name", "identity"},
                                                    {"remove_extra_whitespaces", "false"},
                                                    {"add_dummy_prefix", "false"},
                                                    {"allow_whitespace_only_pieces", "true"},
                                                    {"split_digits", "true"},
                                                    {"num_threads", "16"},  // sums depend on it
                                                    {"minloglevel", "2"}},
                                                   &lines, &model),
        "train a model of " + std::to_string(vocabulary_size) + " tokens (a smaller vocabulary or more text may help)");
  return model;
}

}  // namespace tokenize
