// ananke data import, info, ngram: token stores from text, and what simple models reach on them.
#include <unistd.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <sstream>

#include "launcher/arguments.h"
#include "launcher/command.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/data/document_source.h"
#include "runtime/data/import_text.h"
#include "runtime/data/ngram.h"
#include "runtime/data/token_store.h"

namespace ananke {
namespace {

namespace po = boost::program_options;

// One verb's options; the words without a name are gathered under `positional`.
class DataOptions {
 public:
  DataOptions(std::string verb, std::string usage) : verb_(std::move(verb)), usage_(std::move(usage)) {
    visible_.add_options()("help,h", "this text");
  }
  po::options_description_easy_init add() { return visible_.add_options(); }
  void positional(const char* name, std::vector<std::string>& words) {
    hidden_.add_options()(name, po::value(&words));
    places_.add(name, -1);
  }

  // False: the help was asked for, and printed.
  bool read(const std::vector<std::string>& arguments) {
    po::options_description all;
    all.add(visible_).add(hidden_);
    po::variables_map values;
    read_arguments(arguments, all, places_, &values);
    if (!values.count("help")) return true;
    std::ostringstream text;
    text << visible_;
    std::printf("usage: ananke data %s %s\n\n%s", verb_.c_str(), usage_.c_str(), text.str().c_str());
    return false;
  }
  [[noreturn]] void misused(const std::string& what) const {
    fail(ErrorKind::usage, "data {}: {}; usage: ananke data {} {}", verb_, what, verb_, usage_);
  }

 private:
  std::string verb_;
  std::string usage_;
  po::options_description visible_{"options"};
  po::options_description hidden_;
  po::positional_options_description places_;
};

// A line on standard error every half second on a terminal (rewritten in place), every 10 s elsewhere; none for an
// import that is done before.
class ProgressLine {
 public:
  void operator()(const ImportProgress& progress) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < (terminal_ ? std::chrono::milliseconds(500) : std::chrono::milliseconds(10000))) return;
    last_ = now;
    printed_ = true;
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    const double rate = static_cast<double>(progress.bytes_done) / seconds;
    const std::uint64_t left = progress.bytes_total - std::min(progress.bytes_total, progress.bytes_done);
    std::fprintf(stderr, "%simported %s of %s, %s documents, %s left%s", terminal_ ? "\r" : "",
                 format_bytes(progress.bytes_done).c_str(), format_bytes(progress.bytes_total).c_str(),
                 format_count(static_cast<double>(progress.documents)).c_str(),
                 format_duration(static_cast<double>(left) / rate).c_str(), terminal_ ? "\x1b[K" : "\n");
  }
  ~ProgressLine() {
    if (printed_ && terminal_) std::fprintf(stderr, "\n");
  }

 private:
  bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  bool printed_ = false;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_ = begin_;
};

// In memory for as many numbers as there are different lengths: fewer than sqrt(2 x tokens).
void print_lengths(const TokenStore& store) {
  std::map<std::uint64_t, std::uint64_t> documents_of;  // length -> how many
  for (std::uint64_t document = 0; document < store.info().documents; ++document) {
    ++documents_of[store.length(document)];
  }
  std::printf("targets          %llu (tokens but each document's first)\n",
              static_cast<unsigned long long>(store.targets()));
  if (documents_of.empty()) return;
  std::uint64_t below = 0;
  auto median = documents_of.begin();
  while (below + median->second <= store.info().documents / 2) below += (median++)->second;
  std::printf("document length  %llu shortest, %llu median, %llu longest\n",
              static_cast<unsigned long long>(documents_of.begin()->first),
              static_cast<unsigned long long>(median->first),
              static_cast<unsigned long long>(documents_of.rbegin()->first));
}

// Reading a token checks it, and its chunk's checksum.
void read_everything(const TokenStore& store) {
  std::vector<std::int32_t> piece(std::size_t{256} << 10);
  for (std::uint64_t document = 0; document < store.info().documents; ++document) {
    const std::uint64_t length = store.length(document);
    for (std::uint64_t begin = 0; begin < length; begin += piece.size()) {
      store.read(document, begin,
                 {piece.data(), static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), length - begin))});
    }
  }
}

}  // namespace

int command_data_import(const std::vector<std::string>& arguments) {
  std::string tokenizer, output;
  std::vector<std::string> inputs;
  DataOptions options("import", "--output FILE INPUT...");
  options.add()("tokenizer", po::value(&tokenizer)->default_value("bytes"),
                "how text becomes tokens; bytes: a token is a byte, token 256 ends a document")(
      "output,o", po::value(&output), "token store to write; one that is there is replaced");
  options.positional("input", inputs);
  if (!options.read(arguments)) {
    std::printf("\nEvery INPUT is a text file, which becomes one document, or a folder, whose *.txt do.\n");
    return 0;
  }
  if (output.empty()) options.misused("--output is missing");
  if (inputs.empty()) options.misused("no INPUT is named");
  if (tokenizer != "bytes") options.misused(fmt::format("there is no tokenizer '{}'; there is: bytes", tokenizer));
  ImportResult result;
  {
    ProgressLine line;
    result = import_bytes({inputs.begin(), inputs.end()}, output, std::ref(line));
  }
  std::printf("%s: %llu documents, %llu tokens from %s of text\n", output.c_str(),
              static_cast<unsigned long long>(result.documents), static_cast<unsigned long long>(result.tokens),
              format_bytes(result.bytes).c_str());
  return 0;
}

int command_data_info(const std::vector<std::string>& arguments) {
  std::vector<std::string> files;
  bool check = false;
  DataOptions options("info", "FILE");
  options.add()("check", po::bool_switch(&check), "read every token and verify all checksums");
  options.positional("file", files);
  if (!options.read(arguments)) return 0;
  if (files.size() != 1) options.misused("exactly one FILE is needed");
  const TokenStore store(files[0]);
  const TokenStoreInfo& info = store.info();
  std::printf("token store      %s\n", store.path().c_str());
  std::printf("documents        %llu\n", static_cast<unsigned long long>(info.documents));
  std::printf("tokens           %llu\n", static_cast<unsigned long long>(info.tokens));
  print_lengths(store);
  std::printf("tokenizer        %s (hash %s), vocabulary %llu, ", info.tokenizer.c_str(), info.tokenizer_hash.c_str(),
              static_cast<unsigned long long>(info.vocabulary_size));
  const std::string end = info.eos_id < 0 ? "no token" : fmt::format("token {}", info.eos_id);
  std::printf("%s ends a document\n", end.c_str());
  std::string source = info.source;
  std::replace(source.begin(), source.end(), '\n', ' ');
  if (source.size() > 200) source = source.substr(0, 200) + "...";
  std::printf("source           %s (%s of text, hash %s)\n", source.c_str(), format_bytes(info.source_bytes).c_str(),
              info.source_hash.c_str());
  if (check) {
    read_everything(store);
    std::printf("check            every token read, all checksums fit\n");
  }
  return 0;
}

int command_data_ngram(const std::vector<std::string>& arguments) {
  std::string train, held_out;
  DataOptions options("ngram", "--train FILE --heldout FILE");
  options.add()("train", po::value(&train), "token store that the models are estimated on")(
      "heldout", po::value(&held_out), "token store whose targets are scored");
  if (!options.read(arguments)) {
    std::printf(
        "\nCross-entropy of a unigram (add one) and a bigram model (Witten-Bell) on the targets that an "
        "evaluation would use.\n");
    return 0;
  }
  if (train.empty() || held_out.empty()) options.misused("--train and --heldout are both needed");
  const std::uint64_t vocabulary = TokenStore(train).info().vocabulary_size;
  const auto train_source = open_token_store(train, vocabulary);
  const auto held_out_source = open_token_store(held_out, vocabulary);
  const NgramEntropies found = ngram_entropies(*train_source, *held_out_source, vocabulary);
  std::printf("%llu training tokens, %llu held-out targets\n", static_cast<unsigned long long>(found.train_tokens),
              static_cast<unsigned long long>(found.targets));
  const auto print = [&](const char* name, double nats) {
    std::printf("%-8s %.4f nats per token", name, nats);
    if (held_out_source->text_bytes() > 0) {
      const double bits = nats * static_cast<double>(found.targets) / std::log(2.0);
      std::printf("   %.4f bits per byte", bits / static_cast<double>(held_out_source->text_bytes()));
    }
    std::printf("\n");
  };
  print("unigram", found.unigram);
  print("bigram", found.bigram);
  return 0;
}

}  // namespace ananke
