#include "runtime/data/import_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "runtime/data/ngram.h"
#include "runtime/data/token_store.h"
#include "tests/runtime/data/listed_documents.h"
#include "tests/runtime/refusal.h"
#include "tests/runtime/temporary_folder.h"

namespace ananke {
namespace {

using Tokens = std::vector<std::int32_t>;

TEST(ImportText, RefusesInputsThatAreNotThere) {
  TemporaryFolder folder;
  std::filesystem::create_directory(folder / "empty");
  folder.write("other/a.md", "x");
  const auto refused = [&](const std::string& input) {
    return refusal(ErrorKind::data, [&] { import_bytes({folder / input}, folder / "out.h5"); });
  };
  EXPECT_NAMES(refused("none.txt"), "none.txt");
  EXPECT_NAMES(refused("empty"), "no *.txt");
  EXPECT_NAMES(refused("other"), "no *.txt");
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { import_bytes({}, folder / "out.h5"); }), "nothing to import");
  folder.write("a.txt", "x");
  EXPECT_NAMES(refusal(ErrorKind::resource, [&] { import_bytes({folder / "a.txt"}, folder / "no/out.h5"); }), "out.h5");
  EXPECT_FALSE(std::filesystem::exists(folder / "out.h5"));
}

TEST(ImportText, NeverReplacesWhatItReads) {
  TemporaryFolder folder;
  const auto text = folder.write("texts/a.txt", "the only copy");
  const auto refused = [&](const std::filesystem::path& input, const std::filesystem::path& output) {
    return refusal(ErrorKind::data, [&] { import_bytes({input}, output); });
  };
  EXPECT_NAMES(refused(text, text), "would replace");
  EXPECT_NAMES(refused(folder / "texts", folder / "texts/../texts/a.txt"), "would replace");
  std::filesystem::create_symlink(text, folder / "link");
  EXPECT_NAMES(refused(text, folder / "link"), "would replace");
  EXPECT_NAMES(refusal(ErrorKind::resource, [&] { import_bytes({text}, folder / "texts"); }), "is a folder");
  std::ifstream stream(text);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(stream), {}), "the only copy");
}

TEST(ImportText, MakesEveryFileADocumentOfItsBytes) {
  TemporaryFolder folder;
  folder.write("t/b.txt", "ab\xff");
  folder.write("t/a/z.txt", "");
  folder.write("t/a/y.txt", std::string("\0\n", 2));
  folder.write("t/skipped.md", "no");
  folder.write("one.md", "q");
  std::uint64_t reported = 0;
  const ImportResult result = import_bytes({folder / "t", folder / "one.md"}, folder / "out.h5",
                                           [&](const ImportProgress& progress) { reported = progress.bytes_done; });
  EXPECT_EQ(result.documents, 4U);
  EXPECT_EQ(result.bytes, 6U);
  EXPECT_EQ(result.tokens, 10U);
  EXPECT_EQ(reported, 6U);
  const TokenStore store(folder / "out.h5");
  const Documents expected = {{0, 10, 256}, {256}, {'a', 'b', 255, 256}, {'q', 256}};
  ASSERT_EQ(store.info().documents, expected.size());
  for (std::size_t d = 0; d < expected.size(); ++d) {
    Tokens out(store.length(d));
    store.read(d, 0, out);
    EXPECT_EQ(out, expected[d]);
  }
  EXPECT_EQ(store.info().eos_id, 256);
  EXPECT_EQ(store.info().vocabulary_size, 257U);
  EXPECT_EQ(store.info().source_bytes, 6U);
}

TEST(ImportText, HashesTheTextNotItsPlace) {
  TemporaryFolder folder;
  const auto hash = [&](const std::string& name, const std::string& first, const std::string& second) {
    folder.write(name + "/1.txt", first);
    folder.write(name + "/2.txt", second);
    import_bytes({folder / name}, folder / "out.h5");  // replaces the one before
    return TokenStore(folder / "out.h5").info().source_hash;
  };
  EXPECT_EQ(hash("x", "ab", "c"), hash("y", "ab", "c"));
  EXPECT_NE(hash("x", "ab", "c"), hash("x", "a", "bc"));
}

TEST(Ngram, ScoresByAddOneAndWittenBell) {
  // Training: a b, a b, a c over {a, b, c, d}: 2 a.b, 1 a.c; singles 3 a, 2 b, 1 c.
  const ListedDocuments train({{0, 1}, {0, 1}, {0, 2}});
  const ListedDocuments held_out({{0, 1}, {0, 3}, {1, 0}, {3}});
  const NgramEntropies found = ngram_entropies(train, held_out, 4);
  const double a = 4.0 / 10, b = 3.0 / 10, d = 1.0 / 10;
  EXPECT_EQ(found.train_tokens, 6U);
  EXPECT_EQ(found.targets, 3U);
  EXPECT_NEAR(found.unigram, -(std::log(b) + std::log(d) + std::log(a)) / 3, 1e-12);
  EXPECT_NEAR(found.bigram, -(std::log((2 + 2 * b) / 5) + std::log(2 * d / 5) + std::log(a)) / 3, 1e-12);
  const ListedDocuments lonely(Documents{{1}});
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { ngram_entropies(train, lonely, 4); }), "to score");
}

}  // namespace
}  // namespace ananke
