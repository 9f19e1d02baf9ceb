#include "runtime/config/rules.h"

#include <cmath>
#include <cstdint>

#include "ananke/options.pb.h"
#include "ananke/plugin.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"

namespace ananke {
namespace {

namespace pb = google::protobuf;
using pb::FieldDescriptor;

// A numeric value; index -1 for a field that is not repeated. As text too, since a double does not hold every integer.
struct Number {
  double value;
  std::string text;
};

template <class T>
Number number(T value) {
  return {static_cast<double>(value), fmt::format("{}", value)};
}

Number read_number(const pb::Message& message, const FieldDescriptor* field, int index) {
  const pb::Reflection* r = message.GetReflection();
  const bool one = index < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return number(one ? r->GetInt32(message, field) : r->GetRepeatedInt32(message, field, index));
    case FieldDescriptor::CPPTYPE_INT64:
      return number(one ? r->GetInt64(message, field) : r->GetRepeatedInt64(message, field, index));
    case FieldDescriptor::CPPTYPE_UINT32:
      return number(one ? r->GetUInt32(message, field) : r->GetRepeatedUInt32(message, field, index));
    case FieldDescriptor::CPPTYPE_UINT64:
      return number(one ? r->GetUInt64(message, field) : r->GetRepeatedUInt64(message, field, index));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return number(one ? r->GetFloat(message, field) : r->GetRepeatedFloat(message, field, index));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return number(one ? r->GetDouble(message, field) : r->GetRepeatedDouble(message, field, index));
    default: return {0, ""};
  }
}

bool within(const FieldRule& rule, double value) {
  if (rule.has_minimum() && value < rule.minimum()) return false;
  if (rule.has_maximum() && value > rule.maximum()) return false;
  if (rule.has_above() && value <= rule.above()) return false;
  return !rule.has_below() || value < rule.below();
}

std::string check_value(const pb::Message& message, const FieldDescriptor* field, int index, const FieldRule& rule) {
  if (field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) {
    const Number n = read_number(message, field, index);
    if (n.text.empty()) return "";
    if (!std::isfinite(n.value)) return fmt::format("is {}, but must be a finite number", n.text);
    if (within(rule, n.value)) return "";
    return fmt::format("is {}, but must be {}", n.text, describe_rule(field));
  }
  const pb::Reflection* r = message.GetReflection();
  const std::string text = index < 0 ? r->GetString(message, field) : r->GetRepeatedString(message, field, index);
  try {
    const auto size = rule.bytes() ? static_cast<double>(parse_bytes(text)) : 0;
    const double seconds = rule.duration() ? std::chrono::duration<double>(parse_duration(text)).count() : 0;
    if (!within(rule, rule.bytes() ? size : seconds) && (rule.bytes() || rule.duration())) {
      return fmt::format("is \"{}\", but must be {}", text, describe_rule(field));
    }
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool present(const pb::Message& message, const FieldDescriptor* field) {
  const pb::Reflection* r = message.GetReflection();
  if (field->is_repeated()) return r->FieldSize(message, field) > 0;
  if (!r->HasField(message, field)) return field->has_default_value();
  return field->cpp_type() != FieldDescriptor::CPPTYPE_STRING || !r->GetString(message, field).empty();
}

std::string missing(const FieldDescriptor* field) {
  if (field->is_repeated()) return fmt::format("needs at least one entry; add {} {{ ... }}", field->name());
  if (field->message_type() != nullptr) return fmt::format("is missing; add {} {{ ... }}", field->name());
  return fmt::format("is missing; add {}: ...", field->name());
}

// Calls visit(message, path) for the messages inside the field; an Any is opened.
template <class Visit>
void for_each_message(const pb::Message& message, const FieldDescriptor* field, const std::string& path,
                      const Schema& schema, const Visit& visit) {
  const pb::Reflection* r = message.GetReflection();
  const int count = field->is_repeated() ? r->FieldSize(message, field) : int{r->HasField(message, field)};
  for (int i = 0; i < count; ++i) {
    const pb::Message& inner =
        field->is_repeated() ? r->GetRepeatedMessage(message, field, i) : r->GetMessage(message, field);
    if (const auto* any = dynamic_cast<const pb::Any*>(&inner)) {
      if (any->type_url().empty()) continue;
      const FoundPlugin* plugin = schema.plugin_of_message(message_of_url(any->type_url()));
      visit(*schema.unpack(*any), plugin ? "plugins." + plugin->note->name() : path);
    } else {
      visit(inner, field->is_repeated() ? fmt::format("{}[{}]", path, i) : path);
    }
  }
}

void check_field(const pb::Message& message, const FieldDescriptor* field, const std::string& path,
                 Problems* problems) {
  const FieldRule& rule = field->options().GetExtension(ananke::rule);
  if (rule.required() && !present(message, field)) {
    problems->push_back({path, missing(field)});
    return;
  }
  const pb::Reflection* r = message.GetReflection();
  const int count = field->is_repeated() ? r->FieldSize(message, field) : int{r->HasField(message, field)};
  for (int i = 0; i < count && field->message_type() == nullptr; ++i) {
    const std::string wrong = check_value(message, field, field->is_repeated() ? i : -1, rule);
    if (!wrong.empty()) problems->push_back({field->is_repeated() ? fmt::format("{}[{}]", path, i) : path, wrong});
  }
}

}  // namespace

std::string describe_rule(const FieldDescriptor* field) {
  const FieldRule& rule = field->options().GetExtension(ananke::rule);
  std::string text;
  const auto add = [&](bool has, const char* words, double value) {
    if (has) text += fmt::format("{}{} {}", text.empty() ? "" : " and ", words, value);
  };
  add(rule.has_minimum(), "at least", rule.minimum());
  add(rule.has_above(), "above", rule.above());
  add(rule.has_maximum(), "at most", rule.maximum());
  add(rule.has_below(), "below", rule.below());
  return text;
}

Problems check_rules(const pb::Message& message, const Schema& schema, const std::string& prefix) {
  Problems problems;
  const pb::Descriptor* descriptor = message.GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    const std::string path = prefix.empty() ? field->name() : prefix + "." + field->name();
    check_field(message, field, path, &problems);
    if (field->message_type() == nullptr) continue;
    for_each_message(message, field, path, schema, [&](const pb::Message& inner, const std::string& inner_path) {
      for (Problem& problem : check_rules(inner, schema, inner_path)) problems.push_back(std::move(problem));
    });
  }
  return problems;
}

namespace {

void write_default(const FieldDescriptor* field, pb::Message* message) {
  const pb::Reflection* r = message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32: return r->SetInt32(message, field, field->default_value_int32());
    case FieldDescriptor::CPPTYPE_INT64: return r->SetInt64(message, field, field->default_value_int64());
    case FieldDescriptor::CPPTYPE_UINT32: return r->SetUInt32(message, field, field->default_value_uint32());
    case FieldDescriptor::CPPTYPE_UINT64: return r->SetUInt64(message, field, field->default_value_uint64());
    case FieldDescriptor::CPPTYPE_FLOAT: return r->SetFloat(message, field, field->default_value_float());
    case FieldDescriptor::CPPTYPE_DOUBLE: return r->SetDouble(message, field, field->default_value_double());
    case FieldDescriptor::CPPTYPE_BOOL: return r->SetBool(message, field, field->default_value_bool());
    case FieldDescriptor::CPPTYPE_ENUM: return r->SetEnum(message, field, field->default_value_enum());
    case FieldDescriptor::CPPTYPE_STRING: return r->SetString(message, field, field->default_value_string());
    case FieldDescriptor::CPPTYPE_MESSAGE: return;
  }
}

}  // namespace

void write_defaults(const Schema& schema, pb::Message* message) {
  if (auto* any = dynamic_cast<pb::Any*>(message)) {
    if (any->type_url().empty()) return;
    const std::unique_ptr<pb::Message> inner = schema.unpack(*any);
    write_defaults(schema, inner.get());
    pack(*inner, any);
    return;
  }
  const pb::Descriptor* descriptor = message->GetDescriptor();
  const pb::Reflection* r = message->GetReflection();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    if (field->message_type() == nullptr) {
      const bool absent = !field->is_repeated() && field->has_default_value() && !r->HasField(*message, field);
      if (absent) write_default(field, message);
    } else if (field->is_repeated()) {
      for (int k = 0; k < r->FieldSize(*message, field); ++k)
        write_defaults(schema, r->MutableRepeatedMessage(message, field, k));
    } else if (r->HasField(*message, field)) {
      write_defaults(schema, r->MutableMessage(message, field));
    }
  }
}

}  // namespace ananke
