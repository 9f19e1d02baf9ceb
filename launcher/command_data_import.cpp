// ananke data import: token stores from text, JSON lines and Megatron's data sets.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>

#include "launcher/command.h"
#include "launcher/command_options.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/data/import_documents.h"

namespace ananke {
namespace {

namespace po = boost::program_options;

// A line on standard error every half second on a terminal (rewritten in place), every 10 s elsewhere; none for an
// import that is done before.
class ProgressLine {
 public:
  void operator()(const ImportProgress& progress) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < (terminal_ ? std::chrono::milliseconds(500) : std::chrono::milliseconds(10000))) return;
    last_ = now;
    printed_ = true;
    if (progress.mixing && !mixing_) begin_ = now;
    mixing_ = progress.mixing;
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    const double done = static_cast<double>(progress.done);
    const double total = static_cast<double>(std::max<std::uint64_t>(progress.total, 1));
    const std::string left =
        done > 0 && seconds > 0 ? format_duration(std::max(0.0, total - done) / done * seconds) + " left" : "";
    const std::string counts =
        mixing_ ? fmt::format("mixed {} of {} tokens", format_count(done), format_count(total))
                : fmt::format("imported {} of {}", format_bytes(progress.done), format_bytes(progress.total));
    std::fprintf(stderr, "%s%s%s, %s documents, %s%s", terminal_ ? "\r" : "", bar(done / total).c_str(), counts.c_str(),
                 format_count(static_cast<double>(progress.documents)).c_str(), left.c_str(),
                 terminal_ ? "\x1b[K" : "\n");
  }
  ~ProgressLine() {
    if (printed_ && terminal_) std::fprintf(stderr, "\n");
  }

 private:
  // "[#####.....] ", on a terminal.
  std::string bar(double share) const {
    constexpr double width = 24;
    if (!terminal_) return {};
    const auto full = static_cast<std::size_t>(width * std::clamp(share, 0.0, 1.0));
    return "[" + std::string(full, '#') + std::string(static_cast<std::size_t>(width) - full, '.') + "] ";
  }

  bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  bool printed_ = false;
  bool mixing_ = false;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_ = begin_;
};

constexpr const char* details =
    R"(An INPUT or PATH is a file or a folder (its *.txt, *.txt.gz, *.jsonl and *.jsonl.gz, sorted by path).
  text        a file is a document
  jsonl       a line is a document: the string in its object's --field
  megatron    NAME.idx with NAME.bin; needs --vocab-size, or the --tokenizer that made it
With weights (--source PATH:WEIGHT, for all sources) the store is as long as all sources together, and each source's
share of its tokens is WEIGHT by the sum of all: its documents are repeated in whole rounds, and of the last round
--seed chooses which are taken. Documents longer than 256 KiB are tokenized in pieces, cut at ends of lines.)";

// CPUs that this process may use.
int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

// "PATH" or "PATH:WEIGHT"; what exists under the whole of it is a path.
ImportSource parse_source(const std::string& text, const CommandOptions& options) {
  std::error_code problem;
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || std::filesystem::exists(text, problem)) return {text, std::nullopt};
  double weight = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, weight);
  if (error != std::errc() || rest != end || colon == 0) {
    options.misused(fmt::format("--source {}: there is no such file, and no number follows the last ':'", text));
  }
  return {text.substr(0, colon), weight};
}

ImportFormat parse_format(const std::string& name, const CommandOptions& options) {
  if (name == "auto") return ImportFormat::by_name;
  if (name == "text") return ImportFormat::text;
  if (name == "jsonl") return ImportFormat::json_lines;
  if (name == "megatron") return ImportFormat::megatron;
  options.misused(fmt::format("there is no format '{}'; there are: auto, text, jsonl, megatron", name));
}

void train(const ImportOptions& import, const TrainTokenizer& training, const CommandOptions& options) {
  std::error_code problem;
  if (import.tokenizer.empty() || import.tokenizer == "bytes") {
    options.misused("--train-tokenizer needs --tokenizer FILE, the model to write");
  }
  if (std::filesystem::exists(import.tokenizer, problem)) {
    options.misused(
        fmt::format("--train-tokenizer would replace {}: remove it, or import without training", import.tokenizer));
  }
  if (training.vocabulary_size < 260) {
    options.misused(fmt::format("--train-tokenizer {}: a vocabulary has 260 tokens or more", training.vocabulary_size));
  }
  if (training.type != "bpe" && training.type != "unigram") {
    options.misused(fmt::format("there is no --train-type '{}'; there are: bpe, unigram", training.type));
  }
  const TokenizerInfo info = train_tokenizer(import, training, import.tokenizer);
  std::printf("%s: a tokenizer of %llu tokens, hash %s\n", import.tokenizer.c_str(),
              static_cast<unsigned long long>(info.vocabulary_size), info.hash.c_str());
}

void print_result(const std::string& output, const ImportResult& result) {
  for (const ImportedSource& source : result.sources) {
    const double share =
        static_cast<double>(source.used_tokens) / static_cast<double>(std::max<std::uint64_t>(result.tokens, 1));
    std::printf("  %s: has %llu tokens; %llu used in %llu documents, %.4f of the store\n", source.path.c_str(),
                static_cast<unsigned long long>(source.tokens), static_cast<unsigned long long>(source.used_tokens),
                static_cast<unsigned long long>(source.used_documents), share);
  }
  const std::string from = result.bytes > 0 ? fmt::format(" from {} of text", format_bytes(result.bytes)) : "";
  std::printf("%s: %llu documents, %llu tokens%s\n", output.c_str(), static_cast<unsigned long long>(result.documents),
              static_cast<unsigned long long>(result.tokens), from.c_str());
}

}  // namespace

int command_data_import(const Arguments& arguments) {
  ImportOptions import;
  TrainTokenizer training;
  std::string output, format, train_bytes;
  std::vector<std::string> inputs, sources;
  CommandOptions options(
      "data import", "--output FILE [--source PATH[:WEIGHT]]... [INPUT]...",
      "Makes a token store of text, JSON lines or Megatron's data sets. It gets its name when it is\n"
      "whole: an import that is ended leaves a hidden file at most, which the next one removes.");
  options.add()("output,o", po::value(&output)->value_name("FILE"),
                "token store to write; one that is there is replaced")(
      "source", po::value(&sources)->value_name("PATH"), "PATH or PATH:WEIGHT; may be given several times")(
      "format", po::value(&format)->value_name("auto|text|jsonl|megatron")->default_value("auto"),
      "what the inputs are; auto: by their names")("field",
                                                   po::value(&import.field)->value_name("NAME")->default_value("text"),
                                                   "field of JSON lines that holds the text")(
      "tokenizer", po::value(&import.tokenizer)->value_name("FILE"),
      "bytes (default: a token is a byte, token 256 ends a document), or a SentencePiece model's file")(
      "train-tokenizer", po::value(&training.vocabulary_size)->value_name("N"),
      "first train a SentencePiece model of so many tokens on the sources, into the file that --tokenizer names")(
      "train-type", po::value(&training.type)->value_name("bpe|unigram")->default_value("bpe"),
      "what kind of model to train")(
      "train-bytes", po::value(&train_bytes)->value_name("SIZE")->default_value("64 MiB"), "text to train on at most")(
      "jobs,j", po::value(&import.jobs)->value_name("N")->default_value(usable_cpus(), "one per CPU"),
      "tokenizers at work at once")("seed", po::value(&import.seed)->value_name("N")->default_value(0),
                                    "chooses documents for weights, and text to train on")(
      "vocab-size", po::value(&import.vocabulary_size)->value_name("N"), "megatron: how many tokens there are")(
      "eos-id", po::value(&import.eos_id)->value_name("ID")->default_value(-1),
      "megatron: the token that ends documents; -1: none");
  options.words("INPUT", inputs);
  options.details(details);
  if (!options.read(arguments)) return 0;
  if (output.empty()) options.misused("--output is missing");
  import.format = parse_format(format, options);
  for (const std::string& source : sources) import.sources.push_back(parse_source(source, options));
  for (const std::string& input : inputs) import.sources.push_back({input, std::nullopt});
  if (import.sources.empty()) options.misused("no INPUT is named");
  if (import.jobs < 1 || import.jobs > 1024) options.misused(fmt::format("--jobs {} is not 1 to 1024", import.jobs));
  try {
    training.most_bytes = parse_bytes(train_bytes);
  } catch (const Error& error) {
    options.misused(fmt::format("--train-bytes: {}", error.what()));
  }
  check_store_path(output);  // before a tokenizer is trained for it
  if (training.vocabulary_size > 0) train(import, training, options);
  if (import.tokenizer.empty() && !holds_tokens(import)) import.tokenizer = "bytes";
  ImportResult result;
  {
    ProgressLine line;
    result = import_documents(import, output, std::ref(line));
  }
  print_result(output, result);
  return 0;
}

}  // namespace ananke
