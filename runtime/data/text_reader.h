// Text files and JSON lines, read in order into batches of bounded size.
//
// A text file is one document. A line of a JSON lines file is one, whose text is a field of the object; lines that are
// empty or blank are none. Documents beyond `piece_bytes` are tokenized in pieces, cut behind the end of a line where
// there is one in the second half of a piece, else before a space, else between characters.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/hash.h"
#include "runtime/data/input_file.h"

namespace ananke {

constexpr std::size_t piece_bytes = std::size_t{256} << 10;
constexpr std::size_t longest_json_line = std::size_t{64} << 20;

enum class TextFormat : std::uint8_t { text, json_lines };

struct TextFile {
  std::filesystem::path path;
  TextFormat format = TextFormat::text;
};

struct TextBatch {
  struct Piece {
    std::size_t end = 0;  // in `bytes`; it begins where the one before ends
    bool ends_document = false;
  };
  TextFormat format = TextFormat::text;
  std::string bytes;          // text: pieces one after another; JSON lines: whole lines of one file
  std::vector<Piece> pieces;  // text only
  std::string file;           // JSON lines only, for messages
  std::uint64_t first_line = 0;
  std::uint64_t bytes_on_disk = 0;  // of all files so far
};

class TextReader {
 public:
  explicit TextReader(std::vector<TextFile> files) : files_(std::move(files)) {}
  // False at the end. Throws Error(data) naming the file.
  bool next(TextBatch& batch);
  // Of all text read so far and where its documents (or lines) end; not of names or places of files.
  std::string hash() const { return hasher_.hex(); }

 private:
  bool open_next();
  void begin();
  void close();
  void read_text(TextBatch& batch);
  void read_lines(TextBatch& batch);

  std::vector<TextFile> files_;
  std::size_t next_file_ = 0;
  std::optional<InputFile> file_;
  TextFormat format_ = TextFormat::text;
  std::uint64_t closed_bytes_ = 0;    // on disk, of files before
  std::uint64_t document_bytes_ = 0;  // text: of the document so far
  std::uint64_t lines_ = 0;           // JSON lines: of the file so far
  std::string rest_;                  // read, and not yet in a batch
  bool at_end_ = false;               // of the file
  bool begun_ = false;                // its first bytes were looked at
  Hasher hasher_;
};

// How much of a text that is longer than `most` goes into its first piece.
std::size_t cut_piece(std::string_view text, std::size_t most) noexcept;

// The pieces of a batch as texts.
struct Pieces {
  std::vector<std::string> fields;  // what `texts` refers to, of JSON lines; else the batch is it
  std::vector<std::string_view> texts;
  std::vector<bool> ends_document;
};
// Throws Error(data) naming file, line and, where it is missing or no string, the field.
Pieces pieces_of(const TextBatch& batch, const std::string& field);

}  // namespace ananke
