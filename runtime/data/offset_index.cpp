#include "runtime/data/offset_index.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace ananke {

OffsetIndex::OffsetIndex(std::uint64_t offsets, std::size_t memory, Load load)
    : offsets_(offsets),
      most_chunks_(std::max<std::size_t>(1, memory / (chunk_documents * sizeof(std::uint64_t)))),
      load_(std::move(load)) {
  ANANKE_CHECK(offsets > 0, "an index of {} offsets", offsets);
  chunks_.resize((offsets - 1 + chunk_documents - 1) / chunk_documents);
}

const OffsetIndex::Chunk& OffsetIndex::chunk(std::uint64_t number) const {
  std::unique_ptr<Chunk>& kept = chunks_[number];
  if (kept) return *kept;
  std::unique_ptr<Chunk> room;
  if (resident_.size() >= most_chunks_) {
    room = std::move(chunks_[resident_.front()]);
    resident_.pop_front();
  } else {
    room = std::make_unique<Chunk>();
  }
  const std::uint64_t first = number * chunk_documents;
  room->resize(std::min(chunk_documents + 1, offsets_ - first));
  load_(first, *room);
  kept = std::move(room);
  resident_.push_back(number);
  return *kept;
}

OffsetIndex::Range OffsetIndex::range(std::uint64_t document) const {
  ANANKE_CHECK(document + 1 < offsets_, "document {} of {}", document, offsets_ - 1);
  const std::scoped_lock lock(mutex_);
  const Chunk& found = chunk(document / chunk_documents);
  const std::size_t at = document % chunk_documents;
  return {found[at], found[at + 1]};
}

std::size_t OffsetIndex::resident_chunks() const {
  const std::scoped_lock lock(mutex_);
  return resident_.size();
}

}  // namespace ananke
