// ananke data info, head, ngram: what is in a token store, and what simple models reach on it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "launcher/command.h"
#include "launcher/command_options.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/units.h"
#include "runtime/data/document_source.h"
#include "runtime/data/ngram.h"
#include "runtime/data/token_store.h"
#include "runtime/data/tokenizer.h"

namespace ananke {
namespace {

namespace po = boost::program_options;

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

int command_data_info(const Arguments& arguments) {
  std::string file;
  bool check = false;
  CommandOptions options("data info", "STORE [options]",
                         "Describes a token store: documents, tokens, tokenizer, source.");
  options.add()("check", po::bool_switch(&check), "read every token and verify all checksums");
  options.word("STORE", file);
  if (!options.read(arguments)) return 0;
  const TokenStore store(file);
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

namespace {

// Up to `most` tokens from the beginning of a document as text, on one line.
std::string beginning(const TokenStore& store, std::uint64_t document, std::uint64_t most, Tokenizer& tokenizer) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(std::min(most, store.length(document))));
  store.read(document, 0, tokens);
  if (!tokens.empty() && tokens.back() == store.info().eos_id) tokens.pop_back();
  return json_quoted(tokenizer.decode(tokens));
}

// The one that is named, or that the store keeps.
std::unique_ptr<Tokenizer> tokenizer_of(const TokenStore& store, const std::string& name,
                                        const CommandOptions& options) {
  const TokenStoreInfo& info = store.info();
  const std::string kept = name.empty() ? store.tokenizer_model() : "";
  if (name.empty() && kept.empty() && info.tokenizer != "bytes") {
    options.misused(
        fmt::format("{} does not hold the tokenizer that made it, {} (hash {}): name its model with "
                    "--tokenizer FILE",
                    store.path(), info.tokenizer, info.tokenizer_hash));
  }
  std::unique_ptr<Tokenizer> tokenizer;
  try {
    tokenizer = kept.empty() ? make_tokenizer(name.empty() ? "bytes" : name) : make_tokenizer_of_model(kept);
  } catch (const Error& error) {
    fail(error.kind(), "{}{}: {}", store.path(), kept.empty() ? "" : ", the tokenizer that it keeps", error.what());
  }
  if (tokenizer->info().hash != info.tokenizer_hash) {
    fail(ErrorKind::data, "{} was made by another tokenizer: {} with hash {}, but {} has hash {}", store.path(),
         info.tokenizer, info.tokenizer_hash,
         !kept.empty()  ? "the one that it keeps"
         : name.empty() ? "bytes"
                        : name,
         tokenizer->info().hash);
  }
  return tokenizer;
}

}  // namespace

int command_data_head(const Arguments& arguments) {
  std::string file, name;
  std::uint64_t documents = 0, tokens = 0;
  CommandOptions options("data head", "STORE [options]", "Prints the first documents of a token store as text.");
  options.add()("documents,n", po::value(&documents)->value_name("N")->default_value(5), "how many documents")(
      "tokens", po::value(&tokens)->value_name("N")->default_value(200), "how many tokens of each")(
      "tokenizer", po::value(&name)->value_name("FILE"),
      "SentencePiece model that made the store; needed only where the store does not keep it");
  options.word("STORE", file);
  if (!options.read(arguments)) return 0;
  const TokenStore store(file);
  const std::unique_ptr<Tokenizer> tokenizer = tokenizer_of(store, name, options);
  for (std::uint64_t document = 0; document < std::min(documents, store.info().documents); ++document) {
    const std::uint64_t length = store.length(document);
    std::printf("%llu (%llu tokens): %s%s\n", static_cast<unsigned long long>(document),
                static_cast<unsigned long long>(length), beginning(store, document, tokens, *tokenizer).c_str(),
                length > tokens ? "..." : "");
  }
  return 0;
}

int command_data_ngram(const Arguments& arguments) {
  std::string train, held_out;
  CommandOptions options(
      "data ngram", "--train STORE --heldout STORE",
      "Cross-entropy of a unigram (add one) and a bigram model (Witten-Bell) on the targets that an\n"
      "evaluation would use.");
  options.add()("train", po::value(&train)->value_name("STORE"), "token store that the models are estimated on")(
      "heldout", po::value(&held_out)->value_name("STORE"), "token store whose targets are scored");
  if (!options.read(arguments)) return 0;
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
