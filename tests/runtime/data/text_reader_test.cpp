#include "runtime/data/text_reader.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

using Documents = std::vector<std::string>;

void write_gz(const std::filesystem::path& path, const std::string& text) {
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
}

// Documents, put together from their pieces.
Documents read_all(const std::vector<TextFile>& files, const std::string& field = "text") {
  TextReader reader(files);
  TextBatch batch;
  Documents documents;
  std::string open;
  while (reader.next(batch)) {
    const Pieces pieces = pieces_of(batch, field);
    for (std::size_t i = 0; i < pieces.texts.size(); ++i) {
      EXPECT_LE(pieces.texts[i].size(), piece_bytes);
      open += pieces.texts[i];
      if (pieces.ends_document[i]) documents.push_back(std::exchange(open, {}));
    }
  }
  EXPECT_TRUE(open.empty());
  return documents;
}

std::string refused(const std::filesystem::path& path, TextFormat format, const std::string& field = "text") {
  const std::string message = refusal(ErrorKind::data, [&] { read_all({{path, format}}, field); });
  EXPECT_NAMES(message, path.string());
  return message;
}

TEST(InputFile, RefusesDamagedCompression) {
  TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 20000; ++i) text += std::to_string(i * i);
  write_gz(folder / "good.gz", text);
  const std::string good = read_text(folder / "good.gz");
  EXPECT_EQ(read_all({{folder / "good.gz", TextFormat::text}}), Documents{text});
  for (const std::size_t bytes : {good.size() - 1, good.size() - 8, good.size() / 2, std::size_t{20}, std::size_t{5}}) {
    EXPECT_NAMES(refused(folder.write("cut.gz", good.substr(0, bytes)), TextFormat::text), "cut short") << bytes;
  }
  std::string bad = good;
  bad[good.size() / 2] = static_cast<char>(bad[good.size() / 2] ^ 0x55);
  EXPECT_NAMES(refused(folder.write("bad.gz", bad), TextFormat::text), "damaged");
  EXPECT_NAMES(refused(folder.write("plain.gz", "plain text"), TextFormat::text), "not compressed by gzip");
  EXPECT_NAMES(refused(folder.write("empty.gz", ""), TextFormat::text), "not compressed by gzip");
  EXPECT_NAMES(refused(folder / "none.txt", TextFormat::text), "No such file");
  EXPECT_NAMES(refused(folder.path(), TextFormat::text), "directory");
}

TEST(TextReader, RefusesWhatIsNoText) {
  TemporaryFolder folder;
  write_gz(folder / "text.gz", "hello");
  const std::vector<std::pair<std::string, const char*>> cases = {
      {read_text(folder / "text.gz"), "name that ends in .gz"},
      {std::string("\x28\xb5\x2f\xfd rest", 9), "zstd"},
      {std::string("\xfd\x37zXZ\0 rest", 11), "xz"},
      {"BZh91AY&SY rest", "bzip2"},
      {"PK\x03\x04 rest", "zip"},
      {"\x89HDF\r\n\x1a\n rest", "data info"},
      {"PAR1\x15 rest", "Parquet"},
      {std::string("ARROW1\0\0 rest", 13), "Arrow"},
      {"%PDF-1.7", "PDF"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull"}};
  for (const auto& [bytes, word] : cases) {
    EXPECT_NAMES(refused(folder.write("a.txt", bytes), TextFormat::text), word);
    EXPECT_NAMES(refused(folder.write("a.jsonl", bytes), TextFormat::json_lines), word);
    write_gz(folder / "inside.gz", bytes);
    EXPECT_NAMES(refused(folder / "inside.gz", TextFormat::text), word);
    const std::string later = "text " + bytes, part = bytes.substr(0, 2);  // only a beginning counts, and a whole one
    EXPECT_EQ(read_all({{folder.write("b.txt", later), TextFormat::text}}), Documents{later});
    EXPECT_EQ(read_all({{folder.write("c.txt", part), TextFormat::text}}).size(), 1u);
  }
}

TEST(TextReader, PassesOverTheByteOrderMarkOfJsonLines) {
  TemporaryFolder folder;
  const auto marked = folder.write("a.jsonl", "\xef\xbb\xbf{\"text\": \"a\"}\r\n{\"text\": \"b\"}\r\n");
  EXPECT_EQ(read_all({{marked, TextFormat::json_lines}, {marked, TextFormat::json_lines}}),
            (Documents{"a", "b", "a", "b"}));
  EXPECT_NAMES(refused(folder.write("b.jsonl", "{\"text\": \"a\"}\n\xef\xbb\xbf{}"), TextFormat::json_lines), "line 2");
}

TEST(TextReader, NamesFileAndLineOfABadLine) {
  TemporaryFolder folder;
  const std::string good = "{\"text\": \"a\"}\n";
  const auto at_line_three = [&](const std::string& line, const std::string& field = "text") {
    return refused(folder.write("x.jsonl", good + "\n" + line + "\n" + good), TextFormat::json_lines, field);
  };
  EXPECT_NAMES(at_line_three("{\"text\": \"a"), "line 3, column 12: a string does not end");
  EXPECT_NAMES(at_line_three("{\"text\": \"a\"} {"), "line 3, column 15");
  EXPECT_NAMES(at_line_three("[1]"), "line 3: an object is expected, not [1]");
  EXPECT_NAMES(at_line_three("{\"title\": \"a\", \"n\": 1}"),
               "line 3: there is no field \"text\"; there are: title, n");
  EXPECT_NAMES(at_line_three("{}"), "there are: none");
  EXPECT_NAMES(at_line_three("{\"text\": 1}"), "line 3: field \"text\" is a number, not a string");
  EXPECT_NAMES(at_line_three(good, "body"), "line 1: there is no field \"body\"; there are: text");
  EXPECT_NAMES(at_line_three(std::string("{\"text\": \"\0\"}", 12)), "line 3");
  // Behind the first batch too.
  std::string many;
  while (many.size() < 3 * piece_bytes) many += good;
  const auto lines = std::count(many.begin(), many.end(), '\n');
  EXPECT_NAMES(refused(folder.write("y.jsonl", many + "{"), TextFormat::json_lines),
               fmt::format("line {},", lines + 1));
}

TEST(TextReader, ReadsJsonLines) {
  TemporaryFolder folder;
  const std::string long_text(3 * piece_bytes + 11, 'y');
  const std::string lines =
      "\n{\"id\": {\"text\": 1}, \"text\": \"a\\nb\"}\r\n  \n{\"text\": \"\\u00e9\"}\n{\"text\": \"\"}\n{\"text\": \"" +
      long_text + "\"}\n{\"text\": \"end\"}";
  const Documents expected = {"a\nb", "\xC3\xA9", "", long_text, "end"};
  const auto path = folder.write("x.jsonl", lines);
  EXPECT_EQ(read_all({{path, TextFormat::json_lines}}), expected);
  write_gz(folder / "x.jsonl.gz", lines);
  EXPECT_EQ(read_all({{folder / "x.jsonl.gz", TextFormat::json_lines}}), expected);
  const auto text = folder.write("t.txt", "plain");
  const auto empty = folder.write("e.jsonl", "");
  EXPECT_EQ(read_all({{text, TextFormat::text},
                      {empty, TextFormat::json_lines},
                      {path, TextFormat::json_lines},
                      {text, TextFormat::text}}),
            (Documents{"plain", "a\nb", "\xC3\xA9", "", long_text, "end", "plain"}));
}

TEST(TextReader, CutsLongDocumentsWhereItHurtsLeast) {
  TemporaryFolder folder;
  std::string lines, words, characters(5 * piece_bytes + 1, 'x');
  while (lines.size() < 3 * piece_bytes) lines += "a line of some words\n";
  while (words.size() < 3 * piece_bytes) words += "word ";
  for (std::size_t i = 1; i + 1 < characters.size(); i += 2) characters[i] = '\xC3', characters[i + 1] = '\xA9';
  for (const std::string& text : {lines, words, characters}) {
    const auto path = folder.write("t.txt", text);
    EXPECT_EQ(read_all({{path, TextFormat::text}}), Documents{text});
    TextReader reader({{path, TextFormat::text}});
    TextBatch batch;
    std::uint64_t pieces = 0;
    while (reader.next(batch)) {
      std::size_t begin = 0;
      for (const TextBatch::Piece& piece : batch.pieces) {
        ++pieces;
        if (!piece.ends_document && text == lines) {
          EXPECT_EQ(batch.bytes[piece.end - 1], '\n');
        }
        if (begin > 0 && text == words) {
          EXPECT_EQ(batch.bytes[begin], ' ');
        }
        EXPECT_NE(batch.bytes[begin], '\xA9');
        begin = piece.end;
      }
      EXPECT_LE(batch.bytes.size(), 2 * piece_bytes);
    }
    EXPECT_GE(pieces, 3U);
  }
}

TEST(TextReader, HashesTextAndWhereItEnds) {
  TemporaryFolder folder;
  const auto hash = [&](const std::string& first, const std::string& second) {
    TextReader reader({{folder.write("1", first), TextFormat::text}, {folder.write("2", second), TextFormat::text}});
    TextBatch batch;
    while (reader.next(batch)) {
    }
    return reader.hash();
  };
  EXPECT_EQ(hash("ab", "c"), hash("ab", "c"));
  EXPECT_NE(hash("ab", "c"), hash("a", "bc"));
}

}  // namespace
}  // namespace ananke
