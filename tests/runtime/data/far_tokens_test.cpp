// A store of more than 2^31 tokens: 2.1 GB on disk.
#include <gtest/gtest.h>

#include "runtime/data/token_store.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

TEST(TokenStore, HoldsMoreThanTwoToThe31Tokens) {
  TemporaryFolder folder;
  constexpr std::uint64_t first = (std::uint64_t{1} << 31) + 77;
  const std::vector<std::int32_t> block(1 << 20, 7), end = {1, 2, 3};
  {
    TokenStoreWriter writer(folder / "far.tokens", "bytes", "abc", 2, 256);
    for (std::uint64_t left = first; left > 0;) {
      const auto some = std::min<std::uint64_t>(left, block.size());
      writer.append(std::span(block).first(some));
      left -= some;
    }
    writer.end_document();
    writer.append(end);
    writer.end_document();
    writer.finish("a test", "123", 42);
  }
  const TokenStore store(folder / "far.tokens");
  EXPECT_EQ(store.info().tokens, first + 3);
  EXPECT_EQ(store.info().documents, 2u);
  EXPECT_EQ(store.length(0), first);
  EXPECT_EQ(store.targets(), first - 1 + 2);
  std::vector<std::int32_t> read(3);
  store.read(1, 0, read);
  EXPECT_EQ(read, end);
  store.read(0, first - 3, read);
  EXPECT_EQ(read, std::vector<std::int32_t>(3, 7));
}

}  // namespace
}  // namespace ananke
