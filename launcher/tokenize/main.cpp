// ananke-tokenize: text to tokens and back, in a process of its own, since SentencePiece carries a protobuf that must
// not meet ours. Started by `ananke data`; usable by hand.
//
// Standard output opens with one line:
//   ananke-tokenize 1 NAME vocabulary=COUNT eos=ID hash=HEX       (eos=-1: none)
// Then every frame that comes is answered by one (frames.h), in order, until the input ends:
//   --bytes, --model FILE     text -> tokens         the end-of-document token is not added
//   ... --decode              tokens -> text
//   --train COUNT             text, text, ... -> after the end of input: the line, then the trained model
// Exit code 0 at the end of input; 1 with a sentence on standard error.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <stdexcept>

#include "launcher/tokenize/frames.h"
#include "launcher/tokenize/sentence_pieces.h"

namespace tokenize {
namespace {

constexpr const char* usage =
    "usage: ananke-tokenize --bytes [--decode] | --model FILE [--decode] | --train COUNT [--type bpe|unigram]\n"
    "Tokenizes what comes over standard input; started by `ananke data import` and `ananke data head`.\n";

// The whole definition of the tokenizer "bytes".
const std::string bytes_definition = "bytes: ids are byte values; 256 ends a document";
constexpr int bytes_end = 256;

struct Options {
  bool bytes = false;
  bool decode = false;
  std::string model;
  int train = 0;
  std::string type = "bpe";
};

Options parse(const std::vector<std::string>& words) {
  Options options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const auto value = [&]() -> const std::string& {
      if (i + 1 >= words.size()) throw std::runtime_error(word + " needs a value\n" + usage);
      return words[++i];
    };
    if (word == "--bytes") {
      options.bytes = true;
    } else if (word == "--decode") {
      options.decode = true;
    } else if (word == "--model") {
      options.model = value();
    } else if (word == "--type") {
      options.type = value();
    } else if (word == "--train") {
      const std::string& count = value();
      const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), options.train);
      if (error != std::errc() || *end != '\0' || options.train < 260) {
        throw std::runtime_error("--train " + count + ": a vocabulary has 260 tokens or more (3 marks, 256 bytes)");
      }
    } else {
      throw std::runtime_error("there is no option '" + word + "'\n" + usage);
    }
  }
  if (static_cast<int>(options.bytes) + static_cast<int>(!options.model.empty()) +
          static_cast<int>(options.train > 0) !=
      1) {
    throw std::runtime_error(std::string("exactly one of --bytes, --model and --train is needed\n") + usage);
  }
  if (options.type != "bpe" && options.type != "unigram") {
    throw std::runtime_error("there is no type '" + options.type + "'; there are: bpe, unigram");
  }
  return options;
}

std::string hash_hex(const std::string& bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

void print_header(const char* name, int vocabulary, int eos, const std::string& hash) {
  std::printf("ananke-tokenize 1 %s vocabulary=%d eos=%d hash=%s\n", name, vocabulary, eos, hash.c_str());
  std::fflush(stdout);
}

std::string read_model(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string model((std::istreambuf_iterator<char>(file)), {});
  if (!file || model.empty()) {
    throw std::runtime_error("cannot read the model " + path + ": " + (errno != 0 ? std::strerror(errno) : "empty"));
  }
  return model;
}

template <class Answer>
void answer_frames(bool decode, const Answer& answer) {
  std::string text;
  std::vector<int> tokens;
  while (decode ? read_tokens(stdin, tokens) : read_text(stdin, text)) {
    answer(text, tokens);
    if (decode) {
      write_text(stdout, text);
    } else {
      write_tokens(stdout, tokens);
    }
    if (std::fflush(stdout) != 0) throw std::runtime_error(std::string("cannot answer: ") + std::strerror(errno));
  }
}

void serve_bytes(bool decode) {
  print_header("bytes", bytes_end + 1, bytes_end, hash_hex(bytes_definition));
  answer_frames(decode, [&](std::string& text, std::vector<int>& tokens) {
    if (!decode) {
      tokens.resize(text.size());
      std::transform(text.begin(), text.end(), tokens.begin(), [](char c) { return static_cast<unsigned char>(c); });
      return;
    }
    text.clear();
    for (const int token : tokens) {
      if (token < 0 || token > bytes_end) throw std::runtime_error("token " + std::to_string(token) + " is no byte");
      if (token < bytes_end) text += static_cast<char>(token);
    }
  });
}

void serve_model(const std::string& path, bool decode) {
  const std::string serialized = read_model(path);
  std::optional<SentencePieces> model;
  try {
    model.emplace(serialized);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(path + " is not a usable SentencePiece model: " + error.what());
  }
  print_header("sentencepiece", model->vocabulary_size(), model->eos_id(), hash_hex(serialized));
  answer_frames(decode, [&](std::string& text, std::vector<int>& tokens) {
    if (decode) {
      text = model->decode(tokens);
    } else {
      tokens = model->encode(text);
    }
  });
}

void train_model(int vocabulary, const std::string& type) {
  std::vector<std::string> documents;
  std::string text;
  while (read_text(stdin, text)) documents.push_back(text);
  const std::string serialized = train(documents, vocabulary, type);
  const SentencePieces model(serialized);
  print_header("sentencepiece", model.vocabulary_size(), model.eos_id(), hash_hex(serialized));
  write_text(stdout, serialized);
}

void run(const std::vector<std::string>& words) {
  if (std::find(words.begin(), words.end(), "--help") != words.end()) {
    std::fputs(usage, stdout);
    return;
  }
  const Options options = parse(words);
  if (options.bytes) {
    serve_bytes(options.decode);
  } else if (options.train > 0) {
    train_model(options.train, options.type);
  } else {
    serve_model(options.model, options.decode);
  }
  if (std::fflush(stdout) != 0) throw std::runtime_error(std::string("cannot answer: ") + std::strerror(errno));
}

}  // namespace
}  // namespace tokenize

int main(int argc, char** argv) {
  try {
    tokenize::run({argv + 1, argv + argc});
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ananke-tokenize: %s\n", error.what());
    return 1;
  }
}
