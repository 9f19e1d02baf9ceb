// A small strict JSON reader for files that others wrote (safetensors headers, Hugging Face configs). Unlike protobuf's
// it keeps the spelling of numbers, so 64-bit offsets stay exact, and refuses an object that names a key twice.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ananke {

class Json {
 public:
  enum class Type : std::uint8_t { null, boolean, number, string, array, object };

  // RFC 8259, nesting up to 64. Throws Error(data) that opens with `name` (the file's, for messages) and says line and
  // column; `first_line` is the number of the text's first line in its file.
  static Json parse(std::string_view text, const std::string& name, std::uint64_t first_line = 1);

  Type type() const noexcept { return type_; }
  const char* type_name() const noexcept;
  bool is(Type type) const noexcept { return type_ == type; }
  bool boolean() const noexcept { return text_ == "true"; }
  const std::string& text() const noexcept { return text_; }  // a string's value, a number's spelling
  const std::vector<Json>& items() const noexcept { return items_; }
  const std::vector<std::pair<std::string, Json>>& members() const noexcept { return members_; }  // in the file's order
  const Json* find(std::string_view key) const noexcept;  // member of an object, or null

  // Nothing where this is not a number, not whole (no '.', no exponent) or out of range.
  std::optional<std::uint64_t> as_unsigned() const noexcept;
  std::optional<double> as_double() const noexcept;  // nothing where not a number, or not finite

  std::string brief() const;  // as it stood, cut at 60 characters: for messages

 private:
  friend class JsonParser;
  void write(std::string& out, std::size_t limit) const;
  Type type_ = Type::null;
  std::string text_;
  std::vector<Json> items_;
  std::vector<std::pair<std::string, Json>> members_;
};

// The text as a JSON string, quoted.
std::string json_quoted(std::string_view text);

}  // namespace ananke
