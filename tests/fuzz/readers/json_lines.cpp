#include "runtime/data/text_reader.h"
#include "tests/fuzz/target.h"

namespace ananke::fuzz {
namespace {

// As a text first, as lines then.
void read_all(const std::filesystem::path& file, std::string_view content) {
  TextReader reader({{file, TextFormat::text}, {file, TextFormat::json_lines}});
  TextBatch batch;
  std::string text;
  while (reader.next(batch)) {
    const Pieces pieces = pieces_of(batch, "text");
    require(pieces.texts.size() == pieces.ends_document.size(), "pieces without an end");
    for (const std::string_view piece : pieces.texts) {
      require(piece.size() <= piece_bytes, "a piece that is too long");
      if (batch.format == TextFormat::text) text += piece;
    }
    if (batch.format == TextFormat::text && file.extension() != ".gz") {
      require(content.starts_with(text) && (!pieces.ends_document.back() || text == content), "a text read as another");
    }
  }
}

}  // namespace
}  // namespace ananke::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ananke;
  using namespace ananke::fuzz;
  static const Folder folder;
  const std::string_view content = text_of(data, size);
  const bool compressed = content.starts_with("\x1f\x8b");
  const auto file = folder.write(compressed ? "input.jsonl.gz" : "input.jsonl", content);
  expect_value_or_error(ErrorKind::data, file.string(), [&] { read_all(file, content); });
  return 0;
}
