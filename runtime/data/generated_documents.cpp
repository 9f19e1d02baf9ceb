#include "runtime/data/generated_documents.h"

#include "ananke/job.pb.h"
#include "runtime/base/error.h"

namespace ananke {

GeneratedDocuments::GeneratedDocuments(const GeneratedTokens& config, std::uint64_t documents,
                                       std::uint64_t vocabulary_size, std::uint64_t seed, std::string part)
    : documents_(documents),
      shortest_(config.shortest()),
      longest_(config.longest()),
      branches_(config.branches()),
      vocabulary_size_(vocabulary_size),
      seed_(seed),
      part_(std::move(part)),
      chain_(seed, "generated/chain"),
      part_key_(seed, "generated/" + part_) {
  if (shortest_ > longest_ || shortest_ < 2) {
    fail(ErrorKind::config,
         "data.generated: documents of {} to {} tokens cannot be made; shortest must be at least 2 and at most longest",
         shortest_, longest_);
  }
  if (branches_ == 0 || branches_ > vocabulary_size_) {
    fail(ErrorKind::config, "data.generated: branches is {}, but must be between 1 and model.vocab_size {}", branches_,
         vocabulary_size_);
  }
}

std::string GeneratedDocuments::identity() const {
  return fmt::format("generated:{}:{}:{}-{}:{}:{}:{}", part_, documents_, shortest_, longest_, branches_,
                     vocabulary_size_, seed_);
}

std::uint64_t GeneratedDocuments::length(std::uint64_t document) const noexcept {
  return shortest_ + part_key_.below(document, longest_ - shortest_ + 1);
}

std::int32_t GeneratedDocuments::successor(std::int32_t token, std::uint64_t branch) const noexcept {
  const RandomKey key(chain_.bits(static_cast<std::uint64_t>(token)), "generated/successors");
  return static_cast<std::int32_t>(permuted(key, vocabulary_size_, branch));
}

void GeneratedDocuments::read(std::uint64_t document, std::uint64_t begin, std::span<std::int32_t> out) const {
  // A key of the document's own; `~` keeps its draw apart from that of length().
  const RandomKey key(part_key_.bits(~document), "generated/document");
  auto token = static_cast<std::int32_t>(key.below(0, vocabulary_size_));
  for (std::uint64_t place = 0; place < begin + out.size(); ++place) {
    if (place > 0) token = successor(token, key.below(place, branches_));
    if (place >= begin) out[place - begin] = token;
  }
}

}  // namespace ananke
