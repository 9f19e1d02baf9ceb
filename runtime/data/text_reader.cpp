#include "runtime/data/text_reader.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace ananke {
namespace {

// The field of one line's object.
std::string field_of(std::string_view line, const std::string& field, const TextBatch& batch, std::uint64_t number) {
  const Json object = Json::parse(line, batch.file, number);
  const auto refuse = [&](const std::string& what) {
    fail(ErrorKind::data, "{}, line {}: {}", batch.file, number, what);
  };
  if (!object.is(Json::Type::object)) refuse(fmt::format("an object is expected, not {}", object.brief()));
  const Json* value = object.find(field);
  if (value == nullptr) {
    std::string names;
    for (const auto& member : object.members()) names += (names.empty() ? "" : ", ") + member.first;
    refuse(fmt::format("there is no field \"{}\"; there are: {:.200}", field, names.empty() ? "none" : names));
  }
  if (!value->is(Json::Type::string)) {
    refuse(fmt::format("field \"{}\" is {}, not a string", field, value->type_name()));
  }
  return value->text();
}

void add_json_lines(const TextBatch& batch, const std::string& field, Pieces& out) {
  std::uint64_t number = batch.first_line;
  for (std::size_t begin = 0; begin < batch.bytes.size(); ++number) {
    const std::size_t end = std::min(batch.bytes.find('\n', begin), batch.bytes.size());
    const std::string_view line = std::string_view(batch.bytes).substr(begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      out.fields.push_back(field_of(line, field, batch, number));
    }
  }
  for (const std::string& text : out.fields) {
    std::string_view rest = text;
    while (rest.size() > piece_bytes) {
      const std::size_t cut = cut_piece(rest, piece_bytes);
      out.texts.push_back(rest.substr(0, cut));
      out.ends_document.push_back(false);
      rest.remove_prefix(cut);
    }
    out.texts.push_back(rest);
    out.ends_document.push_back(true);
  }
}

}  // namespace

std::size_t cut_piece(std::string_view text, std::size_t most) noexcept {
  const std::string_view late = text.substr(most / 2, most - most / 2);
  if (const std::size_t line = late.rfind('\n'); line != std::string_view::npos) return most / 2 + line + 1;
  if (const std::size_t space = late.rfind(' '); space != std::string_view::npos) return most / 2 + space;
  for (std::size_t back = 0; back < 4; ++back) {
    if ((static_cast<unsigned char>(text[most - back]) & 0xC0U) != 0x80U) return most - back;
  }
  return most;
}

namespace {

struct Beginning {
  std::string_view bytes;
  const char* what;
};

using namespace std::string_view_literals;
constexpr Beginning no_text[] = {
    {"\x1f\x8b\x08"sv, "is compressed by gzip; give it a name that ends in .gz"},
    {"\x28\xb5\x2f\xfd"sv, "is compressed by zstd; decompress it first"},
    {"\xfd\x37zXZ\0"sv, "is compressed by xz; decompress it first"},
    {"BZh91AY&SY"sv, "is compressed by bzip2; decompress it first"},
    {"PK\x03\x04"sv, "is a zip archive; unpack it first"},
    {"\x89HDF\r\n\x1a\n"sv, "is an HDF5 file, as token stores are; `ananke data info` describes one"},
    {"PAR1\x15"sv, "is a Parquet table; write its text as JSON lines first"},
    {"ARROW1\0\0"sv, "is an Arrow table; write its text as JSON lines first"},
    {"%PDF-"sv, "is a PDF; extract its text first"},
    {"version https://git-lfs.github.com/spec/"sv, "is a Git LFS pointer; `git lfs pull` brings the file itself"},
};

}  // namespace

// `rest_` holds the first bytes of a file.
void TextReader::begin() {
  begun_ = true;
  for (const Beginning& one : no_text) {
    if (rest_.starts_with(one.bytes)) fail(ErrorKind::data, "{} {}, and is no text", file_->path(), one.what);
  }
  constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";  // no part of JSON; Windows programs write it
  if (format_ == TextFormat::json_lines && rest_.starts_with(byte_order_mark)) rest_.erase(0, byte_order_mark.size());
}

bool TextReader::open_next() {
  if (next_file_ == files_.size()) return false;
  const TextFile& file = files_[next_file_++];
  file_.emplace(file.path);
  format_ = file.format;
  document_bytes_ = 0;
  lines_ = 0;
  at_end_ = false;
  begun_ = false;
  return true;
}

void TextReader::close() {
  closed_bytes_ += file_->bytes_on_disk();
  file_.reset();
}

bool TextReader::next(TextBatch& batch) {
  batch = TextBatch{};
  while (batch.bytes.size() < piece_bytes) {
    if (!file_ && !open_next()) break;
    const bool empty = batch.bytes.empty() && batch.pieces.empty();
    if (!empty && (format_ == TextFormat::json_lines || batch.format == TextFormat::json_lines)) break;
    batch.format = format_;
    if (format_ == TextFormat::text) {
      read_text(batch);
    } else {
      read_lines(batch);
    }
    batch.bytes_on_disk = closed_bytes_ + (file_ ? file_->bytes_on_disk() : 0);
    if (at_end_ && rest_.empty() && file_) close();
  }
  return !batch.bytes.empty() || !batch.pieces.empty();
}

// One more piece. A byte more than a piece is read, so that the last one is known to be the last.
void TextReader::read_text(TextBatch& batch) {
  const std::size_t before = rest_.size();
  const std::size_t wanted = piece_bytes + 1;
  rest_.resize(wanted);
  const std::size_t got = file_->read(rest_.data() + before, wanted - before);
  rest_.resize(before + got);
  at_end_ = rest_.size() < wanted;
  if (!begun_) begin();
  const std::size_t cut = at_end_ ? rest_.size() : cut_piece(rest_, piece_bytes);
  batch.bytes.append(rest_, 0, cut);
  batch.pieces.push_back({batch.bytes.size(), at_end_});
  hasher_.update(rest_.data(), cut);
  document_bytes_ += cut;
  if (at_end_) hasher_.update(&document_bytes_, sizeof document_bytes_);  // "ab", "c" is other text than "a", "bc"
  rest_.erase(0, cut);
}

// Whole lines, a batch full of them or a single longer one.
void TextReader::read_lines(TextBatch& batch) {
  std::size_t end = std::string::npos;
  while (!at_end_ && (rest_.size() < piece_bytes || (end = rest_.rfind('\n')) == std::string::npos)) {
    if (rest_.size() > longest_json_line) {
      fail(ErrorKind::data, "{}, line {}: it is longer than {} bytes; is this a file of JSON lines?", file_->path(),
           lines_ + 1, longest_json_line);
    }
    const std::size_t before = rest_.size();
    const std::size_t step = std::max(piece_bytes, before);  // so that a long line is not searched again and again
    rest_.resize(before + step);
    const std::size_t got = file_->read(rest_.data() + before, step);
    rest_.resize(before + got);
    at_end_ = got < step;
    if (!begun_) begin();
  }
  end = at_end_ ? rest_.size() : end + 1;
  batch.file = file_->path();
  batch.first_line = lines_ + 1;
  batch.bytes.assign(rest_, 0, end);
  rest_.erase(0, end);
  lines_ += static_cast<std::uint64_t>(std::count(batch.bytes.begin(), batch.bytes.end(), '\n'));
  hasher_.update(batch.bytes.data(), batch.bytes.size());
  if (at_end_) hasher_.update(&lines_, sizeof lines_);
}

Pieces pieces_of(const TextBatch& batch, const std::string& field) {
  Pieces out;
  if (batch.format == TextFormat::json_lines) {
    add_json_lines(batch, field, out);
    return out;
  }
  std::size_t begin = 0;
  for (const TextBatch::Piece& piece : batch.pieces) {
    out.texts.push_back(std::string_view(batch.bytes).substr(begin, piece.end - begin));
    out.ends_document.push_back(piece.ends_document);
    begin = piece.end;
  }
  return out;
}

}  // namespace ananke
