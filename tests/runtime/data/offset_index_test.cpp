#include "runtime/data/offset_index.h"

#include <gtest/gtest.h>

#include <thread>

#include "runtime/base/random.h"
#include "runtime/data/token_store.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

constexpr std::uint64_t chunk = OffsetIndex::chunk_documents;

// Offsets are squares, so that a wrong place shows.
struct Squares {
  int loads = 0;
  OffsetIndex::Load load() {
    return [this](std::uint64_t first, std::span<std::uint64_t> out) {
      ++loads;
      for (std::uint64_t& offset : out) offset = first * first, ++first;
    };
  }
};

TEST(OffsetIndex, KeepsNoMoreThanItMay) {
  Squares squares;
  const std::uint64_t documents = 10 * chunk + 7;
  const OffsetIndex index(documents + 1, 3 * chunk * sizeof(std::uint64_t), squares.load());
  const RandomKey key(1, "places");
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const std::uint64_t document = key.below(i, documents);
    const OffsetIndex::Range range = index.range(document);
    ASSERT_EQ(range.begin, document * document);
    ASSERT_EQ(range.end, (document + 1) * (document + 1));
  }
  EXPECT_EQ(index.resident_chunks(), 3U);
  EXPECT_EQ(index.range(documents - 1).end, documents * documents);
}

TEST(OffsetIndex, ReadsEveryChunkOnceWhereAllFit) {
  Squares squares;
  const OffsetIndex index(3 * chunk + 1, std::size_t{1} << 20, squares.load());
  for (int pass = 0; pass < 2; ++pass) {
    for (std::uint64_t document = 0; document < 3 * chunk; ++document) index.range(document);
  }
  EXPECT_EQ(squares.loads, 3);
}

TEST(OffsetIndex, LeavesNothingWrongBehindAFailedRead) {
  bool broken = true;
  const OffsetIndex index(chunk + 2, 1, [&](std::uint64_t first, std::span<std::uint64_t> out) {
    if (broken && first > 0) fail(ErrorKind::data, "cannot be read");
    for (std::uint64_t& offset : out) offset = first++;
  });
  EXPECT_EQ(index.range(5).end, 6U);
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { index.range(chunk); }), "cannot be read");
  broken = false;
  EXPECT_EQ(index.range(chunk).begin, chunk);
  EXPECT_EQ(index.range(5).begin, 5U);
}

TEST(OffsetIndex, ServesAStoreWhoseIndexExceedsItsMemory) {
  TemporaryFolder folder;
  const std::uint64_t documents = 3 * chunk + 5;
  TokenStoreWriter writer(folder / "s.h5", "bytes", "h", -1, 1000);
  for (std::uint64_t d = 0; d < documents; ++d) {
    const std::vector<std::int32_t> tokens(d % 3, static_cast<std::int32_t>(d % 1000));
    writer.append(tokens);
    writer.end_document();
  }
  writer.finish("a test", "1", 0);
  const TokenStore store(folder / "s.h5", 1);
  EXPECT_EQ(store.targets(), documents / 3);
  const auto read = [&](std::uint64_t salt) {
    const RandomKey key(salt, "places");
    for (std::uint64_t i = 0; i < 300; ++i) {
      const std::uint64_t d = key.below(i, documents);
      std::vector<std::int32_t> tokens(store.length(d));
      store.read(d, 0, tokens);
      EXPECT_EQ(tokens, std::vector<std::int32_t>(d % 3, static_cast<std::int32_t>(d % 1000)));
    }
  };
  std::thread other(read, 1);
  read(2);
  other.join();
}

}  // namespace
}  // namespace ananke
