#include "runtime/config/describe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ananke/options.pb.h"
#include "runtime/config/rules.h"
#include "runtime/config/schema.h"

namespace ananke {
namespace {

namespace pb = google::protobuf;

// protoc keeps the blank after // in every line.
std::string tidy(const std::string& comment) {
  std::string text;
  for (std::size_t begin = 0; begin < comment.size();) {
    const std::size_t end = std::min(comment.find('\n', begin), comment.size());
    std::string line = comment.substr(begin, end - begin);
    if (line.starts_with(' ')) line.erase(0, 1);
    while (line.ends_with(' ')) line.pop_back();
    text += line + '\n';
    begin = end + 1;
  }
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

template <class Descriptor>
std::string comment(const Descriptor* descriptor) {
  pb::SourceLocation location;
  if (!descriptor->GetSourceLocation(&location)) return "";
  const std::string above = tidy(location.leading_comments);
  const std::string beside = tidy(location.trailing_comments);
  return above.empty() || beside.empty() ? above + beside : above + "\n" + beside;
}

std::string type_of(const pb::FieldDescriptor* field) {
  std::string type = field->type_name();
  if (field->enum_type() != nullptr) type = fmt::format("{}", fmt::join(value_names(field->enum_type()), " | "));
  if (field->message_type() != nullptr) type = field->message_type()->name();
  const FieldRule& rule = field->options().GetExtension(ananke::rule);
  if (rule.bytes()) type = "size, such as \"64 MiB\"";
  if (rule.duration()) type = "duration, such as \"30s\"";
  return field->is_repeated() ? "list of " + type : type;
}

std::string headline(const pb::FieldDescriptor* field) {
  const FieldRule& rule = field->options().GetExtension(ananke::rule);
  std::string text = fmt::format("{}: {}", field->name(), type_of(field));
  if (field->has_default_value()) text += fmt::format(", default {}", default_of(field));
  if (rule.required() && !field->has_default_value()) text += ", required";
  if (const std::string limits = describe_rule(field); !limits.empty()) text += ", " + limits;
  if (rule.fixed_on_resume()) text += ", fixed on resume";
  return text;
}

// The field's comment; of an enum also what stands above its type, where the field says nothing, and beside its values.
std::string explanation(const pb::FieldDescriptor* field) {
  std::string text = comment(field);
  const pb::EnumDescriptor* type = field->enum_type();
  if (type == nullptr) return text;
  if (text.empty()) text = comment(type);
  for (int i = 0; i < type->value_count(); ++i) {
    const std::string of_value = comment(type->value(i));
    if (!of_value.empty()) text += fmt::format("{}{}: {}", text.empty() ? "" : "\n", type->value(i)->name(), of_value);
  }
  return text;
}

std::string indented(const std::string& text, int indent) {
  std::string result;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    result += std::string(static_cast<std::size_t>(indent), ' ') + text.substr(begin, end - begin) + '\n';
    begin = end + 1;
  }
  return result;
}

}  // namespace

std::string default_of(const pb::FieldDescriptor* field) {
  switch (field->cpp_type()) {
    case pb::FieldDescriptor::CPPTYPE_DOUBLE: return fmt::format("{}", field->default_value_double());
    case pb::FieldDescriptor::CPPTYPE_FLOAT: return fmt::format("{}", field->default_value_float());
    case pb::FieldDescriptor::CPPTYPE_INT32: return fmt::format("{}", field->default_value_int32());
    case pb::FieldDescriptor::CPPTYPE_INT64: return fmt::format("{}", field->default_value_int64());
    case pb::FieldDescriptor::CPPTYPE_UINT32: return fmt::format("{}", field->default_value_uint32());
    case pb::FieldDescriptor::CPPTYPE_UINT64: return fmt::format("{}", field->default_value_uint64());
    case pb::FieldDescriptor::CPPTYPE_BOOL: return field->default_value_bool() ? "true" : "false";
    case pb::FieldDescriptor::CPPTYPE_ENUM: return field->default_value_enum()->name();
    case pb::FieldDescriptor::CPPTYPE_STRING: return fmt::format("\"{}\"", field->default_value_string());
    case pb::FieldDescriptor::CPPTYPE_MESSAGE: return "";
  }
  return "";
}

std::string comment_of(const pb::Descriptor* message) { return comment(message); }
std::string comment_of(const pb::FieldDescriptor* field) { return comment(field); }

std::string describe_fields(const pb::Descriptor* message, int indent) {
  constexpr int deepest = 12;  // a message may hold itself
  std::string text;
  for (int i = 0; i < message->field_count(); ++i) {
    const pb::FieldDescriptor* field = message->field(i);
    text += indented(headline(field), indent) + indented(explanation(field), indent + 4);
    if (field->message_type() != nullptr && indent < deepest)
      text += describe_fields(field->message_type(), indent + 2);
  }
  return text;
}

}  // namespace ananke
