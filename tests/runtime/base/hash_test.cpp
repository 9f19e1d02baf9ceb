#include "runtime/base/hash.h"

#include <gtest/gtest.h>

#include "runtime/base/error.h"

namespace ananke {
namespace {

TEST(Hash, NamesAFileThatCannotBeRead) {
  try {
    hash_file("/no/such/file");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_NE(std::string(error.what()).find("/no/such/file"), std::string::npos);
  }
}

TEST(Hash, OfPiecesEqualsHashOfTheWholeAndKnowsItsReferenceValue) {
  Hasher pieces;
  pieces.update("ab", 2);
  pieces.update("c", 1);
  EXPECT_EQ(pieces.hex(), hash_hex("abc"));
  EXPECT_EQ(hash_hex(""), "99aa06d3014798d86001c324468d497f");  // XXH3-128 of nothing, from the xxHash specification
  EXPECT_NE(hash64("abc", 0), hash64("abc", 1));
  const std::string text(1000, 'x');
  Hasher64 short_pieces;
  EXPECT_EQ(short_pieces.value(), hash64(""));
  for (const std::size_t size : {0, 1, 300, 699}) short_pieces.update(text.data(), size);
  EXPECT_EQ(short_pieces.value(), hash64(text));
}

}  // namespace
}  // namespace ananke
