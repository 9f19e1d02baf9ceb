#include "runtime/config/recorded_job.h"

#include <google/protobuf/text_format.h>

#include <algorithm>
#include <map>

#include "ananke/plugin.pb.h"
#include "runtime/base/error.h"
#include "runtime/config/schema.h"
#include "runtime/config/text.h"

namespace ananke {
namespace {

namespace pb = google::protobuf;
using pb::FieldDescriptor;

// The plugins that the job was resolved with, as far as their notes can still be read.
void add_plugins(const Job& skeleton, Schema* schema) {
  for (const PluginFile& file : skeleton.resolved().plugins()) {
    try {
      const FoundPlugin plugin = read_plugin(file.path());
      const auto clashes = [&](const FoundPlugin& other) { return !clash_between(other, plugin).empty(); };
      if (std::ranges::none_of(schema->plugins(), clashes)) schema->add(plugin);
    } catch (const Error& error) {
      schema->add_refused({file.path(), file.name(), "", error.what()});
    }
  }
}

class Flattening {
 public:
  explicit Flattening(const Schema& schema) : schema_(schema) {
    printer_.SetSingleLineMode(true);
    printer_.SetUseUtf8StringEscaping(true);
  }
  void message(const pb::Message& message, const std::string& prefix);
  std::vector<FieldText> fields;
  std::vector<std::string> not_read;

 private:
  void field(const pb::Message& message, const FieldDescriptor* field, const std::string& path);
  void plugin(const PluginUse& use);
  std::string value(const pb::Message& message, const FieldDescriptor* field) const;

  const Schema& schema_;
  pb::TextFormat::Printer printer_;
};

std::string Flattening::value(const pb::Message& message, const FieldDescriptor* field) const {
  std::string text;
  if (!field->is_repeated()) {
    printer_.PrintFieldValueToString(message, field, -1, &text);
    return text;
  }
  std::string list;
  for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i) {
    printer_.PrintFieldValueToString(message, field, i, &text);
    list += (i > 0 ? ", " : "") + text;
  }
  return "[" + list + "]";
}

// By its name: where it stands in the list means nothing.
void Flattening::plugin(const PluginUse& use) {
  const std::string path = "plugins." + use.use();
  fields.push_back({path, "present"});
  const std::string message_name = message_of_url(use.config().type_url());
  if (message_name.empty()) return;
  if (schema_.plugin_of_message(message_name) != nullptr) return message(*schema_.unpack(use.config()), path);
  const auto refused = std::ranges::find(schema_.refused(), use.use(), &RefusedPlugin::name);
  not_read.push_back(fmt::format("the config of plugin '{}' is not compared: {}", use.use(),
                                 refused != schema_.refused().end()
                                     ? refused->reason
                                     : fmt::format("its message {} is not known here", message_name)));
}

// Its name where it has one, else its place.
std::string name_in_list(const pb::Message& message, int index) {
  const FieldDescriptor* name = message.GetDescriptor()->FindFieldByName("name");
  if (name == nullptr || name->cpp_type() != FieldDescriptor::CPPTYPE_STRING) return std::to_string(index);
  return message.GetReflection()->GetString(message, name);
}

void Flattening::field(const pb::Message& of, const FieldDescriptor* field, const std::string& path) {
  const pb::Reflection* r = of.GetReflection();
  if (field->message_type() == nullptr) {
    fields.push_back({path, value(of, field)});
  } else if (field->message_type() == PluginUse::descriptor()) {
    for (int i = 0; i < r->FieldSize(of, field); ++i) {
      plugin(static_cast<const PluginUse&>(r->GetRepeatedMessage(of, field, i)));
    }
  } else if (field->is_repeated()) {
    for (int i = 0; i < r->FieldSize(of, field); ++i) {
      const pb::Message& one = r->GetRepeatedMessage(of, field, i);
      message(one, fmt::format("{}[{}]", path, name_in_list(one, i)));
    }
  } else {
    message(r->GetMessage(of, field), path);
  }
}

void Flattening::message(const pb::Message& message, const std::string& prefix) {
  std::vector<const FieldDescriptor*> set;
  message.GetReflection()->ListFields(message, &set);
  for (const FieldDescriptor* one : set) {
    field(message, one, prefix.empty() ? one->name() : prefix + "." + one->name());
  }
}

}  // namespace

RecordedJob read_recorded_job(const std::filesystem::path& file) {
  SourceText source = read_source(file);
  Job skeleton;
  parse_text(source, Schema(), Reading::tolerant, &skeleton);
  if (!skeleton.has_resolved()) fail(ErrorKind::config, "{} is no resolved job, as a run leaves one", file.string());
  Schema schema;
  add_plugins(skeleton, &schema);
  RecordedJob recorded;
  recorded.not_read = parse_known(source, schema, &recorded.job);
  Flattening flattening(schema);
  flattening.message(recorded.job, "");
  recorded.fields = std::move(flattening.fields);
  for (std::string& text : flattening.not_read) recorded.not_read.push_back(std::move(text));
  return recorded;
}

std::vector<FieldDifference> differences(const std::vector<FieldText>& a, const std::vector<FieldText>& b) {
  std::map<std::string_view, const std::string*> in_a;
  for (const FieldText& field : a) in_a[field.path] = &field.value;
  std::map<std::string_view, const std::string*> in_b;
  // Of b alone, by the field of b before them; the empty path stands for the beginning.
  std::map<std::string_view, std::vector<const FieldText*>> behind;
  std::string_view before;
  for (const FieldText& field : b) {
    in_b[field.path] = &field.value;
    if (in_a.contains(field.path)) {
      before = field.path;
    } else {
      behind[before].push_back(&field);
    }
  }
  std::vector<FieldDifference> found;
  const auto add_behind = [&](std::string_view path) {
    for (const FieldText* field : behind[path]) found.push_back({field->path, nullptr, &field->value});
  };
  add_behind("");
  for (const FieldText& field : a) {
    const auto other = in_b.find(field.path);
    if (other == in_b.end()) {
      found.push_back({field.path, &field.value, nullptr});
    } else if (*other->second != field.value) {
      found.push_back({field.path, &field.value, other->second});
    }
    add_behind(field.path);
  }
  return found;
}

}  // namespace ananke
