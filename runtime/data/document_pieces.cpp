#include "runtime/data/document_pieces.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"

namespace ananke {

DocumentPieces::DocumentPieces(const DocumentSource& source, std::uint64_t seed, std::string name,
                               std::uint32_t row_length)
    : source_(source), seed_(seed), name_(std::move(name)), row_length_(row_length), entries_(read_group(0, 0)) {
  ANANKE_CHECK(row_length > 0, "pieces of {} inputs", row_length);
  settle();
}

std::uint64_t DocumentPieces::groups() const noexcept {
  const std::uint64_t blocks = (source_.documents() + block_documents - 1) / block_documents;
  return (blocks + group_blocks - 1) / group_blocks;
}

std::vector<DocumentPieces::Entry> DocumentPieces::read_group(std::uint64_t epoch, std::uint64_t group) const {
  const std::uint64_t documents = source_.documents();
  const std::uint64_t blocks = (documents + block_documents - 1) / block_documents;
  const RandomKey block_order(seed_, fmt::format("packing/{}/epoch {}", name_, epoch));
  std::vector<Entry> entries;
  entries.reserve(std::min(documents, block_documents * group_blocks));
  for (std::uint64_t b = group * group_blocks; b < std::min(blocks, (group + 1) * group_blocks); ++b) {
    const std::uint64_t first = permuted(block_order, blocks, b) * block_documents;
    for (std::uint64_t document = first; document < std::min(documents, first + block_documents); ++document) {
      const std::uint64_t length = source_.length(document);
      if (length > 1) entries.push_back({document, length - 1});
    }
  }
  const RandomKey order(seed_, fmt::format("packing/{}/epoch {}/group {}", name_, epoch, group));
  for (std::uint64_t left = entries.size(); left > 1; --left) {  // Fisher and Yates
    std::swap(entries[left - 1], entries[order.below(left, left)]);
  }
  return entries;
}

void DocumentPieces::settle() {
  while (place_.index == entries_.size()) {
    place_.index = 0;
    if (++place_.group == groups()) {
      place_.group = 0;
      ++place_.epoch;
    }
    entries_ = read_group(place_.epoch, place_.group);
  }
  const Entry& entry = entries_[place_.index];
  piece_ = {entry.document, place_.offset,
            static_cast<std::uint32_t>(std::min<std::uint64_t>(row_length_, entry.inputs - place_.offset)), 0};
}

void DocumentPieces::advance() {
  place_.offset += piece_.count;
  if (place_.offset == entries_[place_.index].inputs) {
    place_.offset = 0;
    ++place_.index;
  }
  settle();
}

bool DocumentPieces::seek(const Place& place) {
  if (place.group >= groups()) return false;
  std::vector<Entry> entries = read_group(place.epoch, place.group);
  if (place.index >= entries.size() || place.offset >= entries[place.index].inputs || place.offset % row_length_ != 0) {
    return false;
  }
  entries_ = std::move(entries);
  place_ = place;
  settle();
  return true;
}

}  // namespace ananke
