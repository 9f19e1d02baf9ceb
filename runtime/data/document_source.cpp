#include "runtime/data/document_source.h"

#include "ananke/job.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/data/generated_documents.h"
#include "runtime/data/token_store.h"

namespace ananke {
namespace {

class StoredDocuments : public DocumentSource {
 public:
  explicit StoredDocuments(const std::filesystem::path& path) : store_(path) {}
  const TokenStoreInfo& info() const noexcept { return store_.info(); }
  std::string name() const override { return "token store " + store_.path(); }
  // Not the path: a store may move.
  std::string identity() const override {
    const TokenStoreInfo& info = store_.info();
    return "store:" +
           hash_hex(fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}", info.tokenizer, info.tokenizer_hash, info.eos_id,
                                info.vocabulary_size, info.source_hash, info.documents, info.tokens));
  }
  std::uint64_t documents() const noexcept override { return store_.info().documents; }
  std::uint64_t length(std::uint64_t document) const override { return store_.length(document); }
  std::uint64_t targets() const override { return store_.targets(); }
  void read(std::uint64_t document, std::uint64_t begin, std::span<std::int32_t> out) const override {
    store_.read(document, begin, out);
  }
  std::uint64_t text_bytes() const noexcept override { return store_.info().source_bytes; }
  std::string tokenizer() const override {
    return fmt::format("tokenizer {} (hash {})", store_.info().tokenizer, store_.info().tokenizer_hash);
  }

 private:
  TokenStore store_;
};

}  // namespace

std::uint64_t DocumentSource::targets() const {
  std::uint64_t total = 0;
  for (std::uint64_t document = 0; document < documents(); ++document) {
    const std::uint64_t tokens = length(document);
    total += tokens > 0 ? tokens - 1 : 0;
  }
  return total;
}

std::unique_ptr<DocumentSource> open_token_store(const std::filesystem::path& path, std::uint64_t vocabulary_size) {
  auto source = std::make_unique<StoredDocuments>(path);
  const TokenStoreInfo& info = source->info();
  if (info.vocabulary_size > vocabulary_size) {
    fail(ErrorKind::config, "{}: tokenizer {} has {} tokens, but model.vocab_size is {}; set it to at least {}",
         source->name(), info.tokenizer, info.vocabulary_size, vocabulary_size, info.vocabulary_size);
  }
  return source;
}

std::unique_ptr<DocumentSource> training_documents(const Job& job) {
  const Data& data = job.data();
  if (data.has_generated() == !data.tokens().empty()) {
    fail(ErrorKind::config, "data names {} tokens and generated; set exactly one of the two",
         data.has_generated() ? "both" : "neither");
  }
  if (!data.has_generated()) return open_token_store(data.tokens(), job.model().vocab_size());
  return std::make_unique<GeneratedDocuments>(data.generated(), data.generated().documents(), job.model().vocab_size(),
                                              job.training().seed(), "train");
}

std::unique_ptr<DocumentSource> held_out_documents(const Job& job, const HeldOut& set) {
  try {
    if (set.tokens().empty() == (set.generated_documents() == 0)) {
      fail(ErrorKind::config, "names {} tokens and generated_documents; set exactly one of the two",
           set.tokens().empty() ? "neither" : "both");
    }
    if (!set.tokens().empty()) return open_token_store(set.tokens(), job.model().vocab_size());
    if (!job.data().has_generated()) {
      fail(ErrorKind::config, "generated_documents is {}, but data.generated is not set; name a store in tokens",
           set.generated_documents());
    }
    return std::make_unique<GeneratedDocuments>(job.data().generated(), set.generated_documents(),
                                                job.model().vocab_size(), job.training().seed(),
                                                "held-out/" + set.name());
  } catch (const Error& error) {
    fail(error.kind(), "held-out set '{}': {}", set.name(), error.what());
  }
}

}  // namespace ananke
