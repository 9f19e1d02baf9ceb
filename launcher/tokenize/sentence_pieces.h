// SentencePiece as whole documents need it. Errors are std::runtime_error with a sentence.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace tokenize {

class SentencePieces {
 public:
  explicit SentencePieces(const std::string& serialized_model);
  ~SentencePieces();
  int vocabulary_size() const;
  int eos_id() const;  // -1: the model has none
  // SentencePiece slows down on long texts, so they are encoded in parts of up to 16 KiB, cut where no piece crosses:
  // behind the end of a line or before a space. A model that puts a space before every text gets the space at the cut
  // from there. Where neither stands in 8 KiB, the cut is before any character.
  std::vector<int> encode(const std::string& text) const;
  std::string decode(const std::vector<int>& tokens) const;

 private:
  std::size_t cut(const std::string& text, std::size_t begin, bool& drop_space) const;
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
  bool adds_space_ = false;
};

// A model of exactly so many tokens, trained on the lines of the documents: unknown 0, begin 1, end 2, then 256 bytes
// for what is in no piece, so that every text can be restored to the byte (but U+2581, which
// SentencePiece writes for a space). Text is not normalised, digits stand alone,
// runs of spaces may be pieces. `type`: bpe or unigram. Returns the serialized model; the same on every machine.
std::string train(const std::vector<std::string>& documents, int vocabulary_size, const std::string& type);

}  // namespace tokenize
