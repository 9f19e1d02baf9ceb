// Memory cut out of blocks, over a source that counts.
#include "plugins/backend_cuda/block_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "runtime/base/error.h"
#include "runtime/device/arena.h"

namespace ananke::cuda {
namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

class CountingSource final : public BlockSource {
 public:
  explicit CountingSource(std::size_t limit) : limit_(limit) {}
  ~CountingSource() override { EXPECT_EQ(blocks.size(), 0u); }
  void* reserve(std::size_t bytes) override {
    ++asked;
    if (taken + bytes > limit_) return nullptr;
    void* block = std::aligned_alloc(256, bytes);
    std::memset(block, 0xAB, bytes);
    blocks[block] = bytes;
    taken += bytes;
    return block;
  }
  void unreserve(void* block) noexcept override {
    taken -= blocks.at(block);
    blocks.erase(block);
    std::free(block);
  }
  void clear(void* piece, std::size_t bytes) override {
    if (broken) fail(ErrorKind::resource, "the device is gone");
    std::memset(piece, 0, bytes);
  }
  const char* name() const override { return "test memory"; }
  std::string situation() const override { return "(the test has no more)"; }

  std::map<void*, std::size_t> blocks;
  std::size_t taken = 0;
  int asked = 0;
  bool broken = false;

 private:
  const std::size_t limit_;
};

TEST(BlockMemory, RefusesWithTheNumbersWhatIsNotThere) {
  CountingSource source(8 * mib);
  BlockMemory memory(source, 4 * mib);
  void* piece = memory.allocate(3 * mib);
  for (const std::size_t bytes : {std::size_t{9} * mib, std::size_t{1} << 60, ~std::size_t{0}}) {
    try {
      memory.allocate(bytes);
      FAIL() << bytes;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::resource);
      const std::string text = error.what();
      EXPECT_NE(text.find("of test memory: 3.00 MiB are in use by this rank, 4.00 MiB reserved in 1 blocks"),
                std::string::npos)
          << text;
      EXPECT_NE(text.find("(the test has no more)"), std::string::npos) << text;
    }
  }
  memory.release(piece, 3 * mib);
}

TEST(BlockMemory, GivesBackWhatCouldNotBeCleared) {
  CountingSource source(64 * mib);
  BlockMemory memory(source, 4 * mib);
  source.broken = true;
  EXPECT_THROW(memory.allocate(mib), Error);
  EXPECT_EQ(memory.numbers().used, 0u);
  source.broken = false;
  memory.release(memory.allocate(4 * mib), 4 * mib);
  EXPECT_EQ(memory.numbers().blocks, 1u);
}

TEST(BlockMemory, SharesBlocksAndGivesLargePiecesTheirOwn) {
  CountingSource source(64 * mib);
  BlockMemory memory(source, 4 * mib);
  void* a = memory.allocate(100);
  void* b = memory.allocate(mib);
  EXPECT_EQ(source.asked, 1);
  EXPECT_EQ(static_cast<std::byte*>(b) - static_cast<std::byte*>(a), 256);
  void* c = memory.allocate(10 * mib + 1);
  EXPECT_EQ(memory.numbers().reserved, 4 * mib + 12 * mib);  // whole pages
  EXPECT_EQ(memory.numbers().used, 256 + mib + 10 * mib + 256);
  for (void* piece : {a, b, c}) memory.release(piece, 0);
  EXPECT_EQ(memory.numbers().used, 0u);
  EXPECT_EQ(memory.numbers().blocks, 2u);
}

TEST(BlockMemory, KnowsTheBlockOfAnAddress) {
  CountingSource source(64 * mib);
  BlockMemory memory(source, 4 * mib);
  EXPECT_EQ(memory.block_of(&source).begin, nullptr);
  auto* first = static_cast<std::byte*>(memory.allocate(mib));
  auto* second = static_cast<std::byte*>(memory.allocate(mib));
  auto* large = static_cast<std::byte*>(memory.allocate(9 * mib));
  EXPECT_EQ(memory.block_of(first).begin, memory.block_of(second + mib - 1).begin);
  EXPECT_EQ(memory.block_of(first).bytes, 4 * mib);
  EXPECT_EQ(memory.block_of(large + 5).begin, large);
  const BlockMemory::Block whole = memory.block_of(large);
  EXPECT_EQ(whole.bytes, 10 * mib);
  EXPECT_NE(memory.block_of(whole.begin + whole.bytes - 1).begin, nullptr);
  EXPECT_NE(memory.block_of(whole.begin + whole.bytes).begin, whole.begin);
  for (std::byte* piece : {first, second, large}) memory.release(piece, 0);
}

TEST(BlockMemory, JoinsFreeNeighboursAndTakesTheBestFit) {
  CountingSource source(64 * mib);
  BlockMemory memory(source, 8 * mib);
  void* pieces[4];
  for (void*& piece : pieces) piece = memory.allocate(2 * mib);
  memory.release(pieces[0], 0);
  memory.release(pieces[2], 0);
  EXPECT_EQ(memory.allocate(mib), pieces[0]);  // two of one size: the lower address
  EXPECT_EQ(memory.allocate(mib), static_cast<std::byte*>(pieces[0]) + mib);
  memory.release(pieces[1], 0);  // between a piece in use and a free one
  EXPECT_EQ(memory.allocate(4 * mib), pieces[1]);
  EXPECT_EQ(memory.numbers().blocks, 1u);
}

TEST(BlockMemory, GivesUnusedBlocksBackBeforeItFailsAndCountsIt) {
  CountingSource source(12 * mib);
  BlockMemory memory(source, 4 * mib);
  void* small = memory.allocate(4 * mib);
  void* keeper = memory.allocate(2 * mib);
  memory.release(small, 0);
  EXPECT_EQ(memory.numbers().retries, 0u);
  void* large = memory.allocate(8 * mib);
  EXPECT_EQ(memory.numbers().retries, 1u);
  EXPECT_EQ(memory.numbers().reserved, 12 * mib);
  EXPECT_EQ(memory.numbers().blocks, 2u);
  memory.release(keeper, 0);
  memory.release(large, 0);
}

TEST(BlockMemory, TakesLessThanABlockWhereNoWholeOneIsLeft) {
  CountingSource source(6 * mib);
  BlockMemory memory(source, 4 * mib);
  memory.allocate(3 * mib);
  void* piece = memory.allocate(2 * mib);
  EXPECT_NE(piece, nullptr);
  EXPECT_EQ(memory.numbers().reserved, 6 * mib);
}

TEST(BlockMemory, PiecesAreApartAlignedZeroAndAccountedFor) {
  CountingSource source(256 * mib);
  BlockMemory memory(source, 4 * mib);
  std::mt19937 random(1);
  std::map<std::byte*, std::size_t> held;
  std::uint64_t used = 0;
  for (int i = 0; i < 3000; ++i) {
    if (held.size() > 40 || (!held.empty() && random() % 3 == 0)) {
      auto it = std::next(held.begin(), static_cast<std::ptrdiff_t>(random() % held.size()));
      std::memset(it->first, 0xCD, it->second);
      memory.release(it->first, it->second);
      used -= (it->second + 255) / 256 * 256;
      held.erase(it);
      continue;
    }
    const std::size_t bytes = 1 + random() % (random() % 8 == 0 ? 300000 : 3000);
    auto* piece = static_cast<std::byte*>(memory.allocate(bytes));
    used += (bytes + 255) / 256 * 256;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(piece) % 256, 0u);
    EXPECT_EQ(piece[0], std::byte{0});
    EXPECT_EQ(piece[bytes - 1], std::byte{0});
    const auto next = held.lower_bound(piece);
    EXPECT_TRUE(next == held.end() || piece + bytes <= next->first);
    EXPECT_TRUE(next == held.begin() || std::prev(next)->first + std::prev(next)->second <= piece);
    held[piece] = bytes;
    ASSERT_EQ(memory.numbers().used, used);
  }
  for (const auto& [piece, bytes] : held) memory.release(piece, bytes);
  // All joined again: each block serves one piece of its size.
  const auto blocks = memory.numbers().blocks;
  for (std::uint64_t i = 0; i < blocks; ++i) memory.allocate(4 * mib);
  EXPECT_EQ(memory.numbers().blocks, blocks);
}

TEST(BlockMemory, ServesAnArena) {
  CountingSource source(64 * mib);
  BlockMemory memory(source, 4 * mib);
  Arena arena(memory);
  Buffer buffer = arena.allocate(1000, "weights");
  EXPECT_EQ(arena.used(), 1000u);
  EXPECT_EQ(arena.ledger().at(0).purpose, "weights");
  buffer = Buffer();
  EXPECT_EQ(memory.numbers().used, 0u);
}

}  // namespace
}  // namespace ananke::cuda
