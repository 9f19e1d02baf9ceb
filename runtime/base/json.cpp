#include "runtime/base/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_set>

#include "runtime/base/error.h"
#include "runtime/base/printable.h"

namespace ananke {

class JsonParser {
 public:
  JsonParser(std::string_view text, const std::string& name, std::uint64_t first_line)
      : text_(text), name_(name), first_line_(first_line) {}

  Json document() {
    Json value = this->value(0);
    skip_space();
    if (at_ != text_.size()) refuse("there is more text after the value");
    return value;
  }

 private:
  static constexpr int deepest = 64;

  [[noreturn]] void refuse(std::string_view what) const {
    const std::string_view before = text_.substr(0, at_);
    const auto line = first_line_ + static_cast<std::uint64_t>(std::count(before.begin(), before.end(), '\n'));
    const auto column = at_ - (before.rfind('\n') + 1) + 1;  // npos + 1 == 0
    fail(ErrorKind::data, "{}: not valid JSON at line {}, column {}: {}", name_, line, column, what);
  }

  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(char c) {
    if (peek() != c || at_ >= text_.size()) return false;
    ++at_;
    return true;
  }

  Json value(int depth) {
    if (depth > deepest) refuse("nested deeper than 64");
    skip_space();
    if (at_ >= text_.size()) refuse("the text ends where a value is expected");
    switch (text_[at_]) {
      case '{': return object(depth);
      case '[': return array(depth);
      case '"': {
        Json json;
        json.type_ = Json::Type::string;
        json.text_ = string();
        return json;
      }
      case 't': return word("true", Json::Type::boolean);
      case 'f': return word("false", Json::Type::boolean);
      case 'n': return word("null", Json::Type::null);
      default: return number();
    }
  }

  Json word(std::string_view spelling, Json::Type type) {
    if (text_.substr(at_, spelling.size()) != spelling) refuse("a value is expected");
    at_ += spelling.size();
    Json json;
    json.type_ = type;
    json.text_ = spelling;
    return json;
  }

  std::size_t digits() {
    const std::size_t begin = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    return at_ - begin;
  }

  Json number() {
    const std::size_t begin = at_;
    take('-');
    const std::size_t first = at_;
    const std::size_t whole = digits();
    if (whole == 0) refuse("a value is expected");
    if (whole > 1 && text_[first] == '0') refuse("a number begins with 0");
    if (take('.') && digits() == 0) refuse("digits are missing after '.'");
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      if (!take('+')) take('-');
      if (digits() == 0) refuse("digits are missing in the exponent");
    }
    Json json;
    json.type_ = Json::Type::number;
    json.text_ = text_.substr(begin, at_ - begin);
    return json;
  }

  unsigned four_hex_digits() {
    unsigned code = 0;
    const char* begin = text_.data() + at_;
    if (text_.size() - at_ < 4 || std::from_chars(begin, begin + 4, code, 16).ptr != begin + 4) {
      refuse("\\u needs four hexadecimal digits");
    }
    at_ += 4;
    return code;
  }

  void append_code_point(std::string& out) {
    unsigned code = four_hex_digits();
    if (code >= 0xD800 && code < 0xDC00) {
      if (!take('\\') || !take('u')) refuse("half a surrogate pair");
      const unsigned low = four_hex_digits();
      if (low < 0xDC00 || low > 0xDFFF) refuse("half a surrogate pair");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code <= 0xDFFF) {
      refuse("half a surrogate pair");
    }
    const auto put = [&](unsigned byte) { out += static_cast<char>(byte); };
    if (code < 0x80) {
      put(code);
    } else if (code < 0x800) {
      put(0xC0 | code >> 6), put(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
      put(0xE0 | code >> 12), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
    } else {
      put(0xF0 | code >> 18), put(0x80 | (code >> 12 & 0x3F)), put(0x80 | (code >> 6 & 0x3F)),
          put(0x80 | (code & 0x3F));
    }
  }

  std::string string() {
    if (!take('"')) refuse("a string is expected");
    std::string out;
    for (;;) {
      const std::size_t begin = at_;
      while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
             static_cast<unsigned char>(text_[at_]) >= 0x20) {
        ++at_;
      }
      out.append(text_, begin, at_ - begin);
      if (at_ >= text_.size()) refuse("a string does not end");
      const char c = text_[at_++];
      if (c == '"') return out;
      if (c != '\\') refuse("a control character inside a string");
      static constexpr std::string_view letters = "\"\\/bfnrt";
      static constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
      const char escape = peek();
      const std::size_t found = at_ < text_.size() ? letters.find(escape) : std::string_view::npos;
      if (found == std::string_view::npos && escape != 'u') refuse("an unknown escape in a string");
      ++at_;
      if (escape == 'u') {
        append_code_point(out);
      } else {
        out += meanings[found];
      }
    }
  }

  Json array(int depth) {
    Json json;
    json.type_ = Json::Type::array;
    take('[');
    skip_space();
    if (take(']')) return json;
    do {
      json.items_.push_back(value(depth + 1));
      skip_space();
    } while (take(','));
    if (!take(']')) refuse("',' or ']' is expected");
    return json;
  }

  Json object(int depth) {
    Json json;
    json.type_ = Json::Type::object;
    take('{');
    skip_space();
    if (take('}')) return json;
    std::unordered_set<std::string> seen;
    do {
      skip_space();
      std::string key = string();
      if (!seen.insert(key).second)
        refuse(fmt::format("the key \"{}\" stands twice in one object", printable(key, 100)));
      skip_space();
      if (!take(':')) refuse("':' is expected");
      Json member = value(depth + 1);
      json.members_.emplace_back(std::move(key), std::move(member));
      skip_space();
    } while (take(','));
    if (!take('}')) refuse("',' or '}' is expected");
    return json;
  }

  std::string_view text_;
  const std::string& name_;
  std::uint64_t first_line_;
  std::size_t at_ = 0;
};

Json Json::parse(std::string_view text, const std::string& name, std::uint64_t first_line) {
  return JsonParser(text, name, first_line).document();
}

const char* Json::type_name() const noexcept {
  switch (type_) {
    case Type::null: return "null";
    case Type::boolean: return "a boolean";
    case Type::number: return "a number";
    case Type::string: return "a string";
    case Type::array: return "a list";
    case Type::object: return "an object";
  }
  return "unknown";
}

const Json* Json::find(std::string_view key) const noexcept {
  for (const auto& [name, value] : members_) {
    if (name == key) return &value;
  }
  return nullptr;
}

std::optional<std::uint64_t> Json::as_unsigned() const noexcept {
  std::uint64_t value = 0;
  const char* end = text_.data() + text_.size();
  if (type_ != Type::number) return {};
  const auto result = std::from_chars(text_.data(), end, value);
  if (result.ec != std::errc{} || result.ptr != end) return {};
  return value;
}

std::optional<double> Json::as_double() const noexcept {
  double value = 0;
  const char* end = text_.data() + text_.size();
  if (type_ != Type::number) return {};
  const auto result = std::from_chars(text_.data(), end, value);
  if (result.ec != std::errc{} || result.ptr != end || !std::isfinite(value)) return {};
  return value;
}

void Json::write(std::string& out, std::size_t limit) const {
  if (out.size() > limit) return;
  switch (type_) {
    case Type::string: out += json_quoted(text_); return;
    case Type::array:
      out += '[';
      for (const Json& item : items_) {
        if (&item != &items_.front()) out += ", ";
        item.write(out, limit);
      }
      out += ']';
      return;
    case Type::object:
      out += '{';
      for (const auto& member : members_) {
        if (&member != &members_.front()) out += ", ";
        out += json_quoted(member.first) + ": ";
        member.second.write(out, limit);
      }
      out += '}';
      return;
    default: out += text_;
  }
}

std::string Json::brief() const {
  std::size_t limit = 60;
  std::string out;
  write(out, limit);
  if (out.size() <= limit) return out;
  while ((static_cast<unsigned char>(out[limit]) & 0xC0U) == 0x80U && limit > 56) --limit;  // not within a character
  return out.substr(0, limit) + "...";
}

std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n' || c == '\t') {
      out += c == '\n' ? "\\n" : "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace ananke
