#include "runtime/config/override.h"

#include <algorithm>
#include <span>

#include "ananke/job.pb.h"
#include "ananke/plugin.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/nearest.h"
#include "runtime/base/printable.h"

namespace ananke {
namespace {

namespace pb = google::protobuf;
using pb::FieldDescriptor;
using Steps = std::span<const PathStep>;
constexpr std::size_t most_quoted = 200;  // bytes of what was given, in messages

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 32 || byte == 127) {
      result += fmt::format("\\{:03o}", byte);
    } else {
      result += c;
    }
  }
  return result + "\"";
}

bool is_quoted(std::string_view text) {
  return text.size() >= 2 && (text.front() == '"' || text.front() == '\'') && text.back() == text.front();
}

// Text may come without quotes; so may every element of [a, b].
std::string string_value(std::string_view value, bool list) {
  if (is_quoted(value)) return std::string(value);
  if (!list || value.size() < 2 || value.front() != '[' || value.back() != ']') return quoted(value);
  std::string result = "[";
  std::string_view rest = value.substr(1, value.size() - 2);
  while (!rest.empty()) {
    std::string_view element = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), element.size() + 1));
    while (!element.empty() && element.front() == ' ') element.remove_prefix(1);
    while (!element.empty() && element.back() == ' ') element.remove_suffix(1);
    if (result.size() > 1) result += ", ";
    result += is_quoted(element) ? std::string(element) : quoted(element);
  }
  return result + "]";
}

class Setter {
 public:
  Setter(const Override& change, const Schema& schema) : change_(change), schema_(schema) {}

  void set_in_job(Job* job);
  void set(pb::Message* message, Steps steps) const;
  std::string path() const { return path_; }

 private:
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) const {
    fail(ErrorKind::config, "{}: {}", what(), fmt::format(text, std::forward<Args>(args)...));
  }
  std::string what() const { return "--set " + printable(change_.text, most_quoted); }
  const FieldDescriptor* find(const pb::Message& message, const PathStep& step) const;
  void descend(pb::Message* message, const FieldDescriptor* field, Steps steps) const;
  void assign(pb::Message* message, const FieldDescriptor* field, const PathStep& step) const;
  void assign_element(pb::Message* message, const FieldDescriptor* field, int index, const pb::Message& scratch) const;
  int entry_of(Job* job, const PathStep& name) const;
  void set_in_plugin(PluginUse* entry, Steps steps);

  const Override& change_;
  const Schema& schema_;
  std::string path_;
};

const FieldDescriptor* Setter::find(const pb::Message& message, const PathStep& step) const {
  const pb::Descriptor* descriptor = message.GetDescriptor();
  const FieldDescriptor* field = descriptor->FindFieldByName(step.name);
  if (field == nullptr) refuse("{}", no_such_field(descriptor, step.name));
  if (step.index && !field->is_repeated()) refuse("'{}' is no list; leave out [{}]", step.name, *step.index);
  return field;
}

void Setter::set(pb::Message* message, Steps steps) const {
  const FieldDescriptor* field = find(*message, steps[0]);
  if (steps.size() > 1) {
    descend(message, field, steps);
  } else {
    assign(message, field, steps[0]);
  }
}

void Setter::descend(pb::Message* message, const FieldDescriptor* field, Steps steps) const {
  const pb::Reflection* r = message->GetReflection();
  if (field->message_type() == nullptr) {
    refuse("'{}' is a {}, it has no field '{}'", field->name(), field->type_name(), steps[1].name);
  }
  if (!field->is_repeated()) return set(r->MutableMessage(message, field), steps.subspan(1));
  const int size = r->FieldSize(*message, field);
  if (!steps[0].index) refuse("'{0}' is a list of {1}; say which, as in {0}[0]", field->name(), size);
  if (*steps[0].index > size) {
    refuse("{} does not exist: '{}' has {} entries, so at most [{}] can be added", steps[0].text(), field->name(), size,
           size);
  }
  pb::Message* element = *steps[0].index == size ? r->AddMessage(message, field)
                                                 : r->MutableRepeatedMessage(message, field, *steps[0].index);
  set(element, steps.subspan(1));
}

// The value is read by the text format itself, into a scratch message, so that all its forms and checks hold here too.
void Setter::assign(pb::Message* message, const FieldDescriptor* field, const PathStep& step) const {
  if (change_.append && (!field->is_repeated() || step.index)) {
    refuse("+= appends to a list, but '{}' is {}", step.text(), step.index ? "one element" : "no list");
  }
  std::string value = change_.value;
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) value = string_value(value, field->is_repeated());
  const char* colon = field->message_type() != nullptr ? " " : ": ";
  const std::unique_ptr<pb::Message> scratch(message->New());
  parse_piece(what(), field->name() + colon + value, schema_, scratch.get());

  const pb::Reflection* r = message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  r->ListFields(*scratch, &fields);
  const bool empty_list = field->is_repeated() && fields.empty();
  if (!empty_list && (fields.size() != 1 || fields[0] != field)) refuse("the value sets more than '{}'", field->name());
  if (step.index) return assign_element(message, field, *step.index, *scratch);
  if (!change_.append) r->ClearField(message, field);
  message->MergeFrom(*scratch);
}

void Setter::assign_element(pb::Message* message, const FieldDescriptor* field, int index,
                            const pb::Message& scratch) const {
  const pb::Reflection* r = message->GetReflection();
  const int size = r->FieldSize(*message, field);
  if (r->FieldSize(scratch, field) != 1) refuse("{}[{}] takes one value", field->name(), index);
  if (index > size) refuse("{0}[{1}] does not exist: '{0}' has {2} entries", field->name(), index, size);
  message->MergeFrom(scratch);  // appends
  if (index < size) {
    r->SwapElements(message, field, index, size);
    r->RemoveLast(message, field);
  }
}

// The plugin's entry in the job, added where it is not there yet.
int Setter::entry_of(Job* job, const PathStep& name) const {
  const int entry = plugin_entry(*job, schema_, name.name);
  if (entry >= 0) return entry;
  if (schema_.plugin(name.name) == nullptr) {
    refuse("there is no plugin '{}'{} (`ananke plugins` lists them; a place in the list is plugins[0])", name.name,
           suggestion(name.name, schema_.plugin_names()));
  }
  job->add_plugins()->set_use(name.name);
  return job->plugins_size() - 1;
}

void Setter::set_in_plugin(PluginUse* entry, Steps steps) {
  const FoundPlugin* plugin = entry->has_use() ? schema_.plugin(entry->use())
                                               : schema_.plugin_of_message(message_of_url(entry->config().type_url()));
  if (plugin == nullptr) refuse("the plugin '{}' is not at hand, so its fields are not known", entry->use());
  const std::string& name = plugin->note->name();
  const pb::Descriptor* descriptor = schema_.config_of(*plugin);
  if (descriptor == nullptr) refuse("plugin '{}' takes no config, so it has no field '{}'", name, steps[0].name);
  const std::unique_ptr<pb::Message> config =
      entry->config().type_url().empty() ? schema_.make(descriptor) : schema_.unpack(entry->config());
  if (config->GetDescriptor() != descriptor) {
    refuse("plugin '{}' has the config message {}, but its entry has a {}", name, descriptor->full_name(),
           config->GetDescriptor()->full_name());
  }
  set(config.get(), steps);
  pack(*config, entry->mutable_config());
  path_ = "plugins." + name;
  for (const PathStep& step : steps) path_ += "." + step.text();
}

void Setter::set_in_job(Job* job) {
  const Steps steps = change_.path;
  for (const PathStep& step : steps) path_ += (path_.empty() ? "" : ".") + step.text();
  if (steps[0].name != "plugins" || steps.size() == 1) return set(job, steps);
  if (!steps[0].index && steps.size() == 2) {
    refuse("name a field of plugin '{0}', as in plugins.{0}.{1}=...", steps[1].name, "library");
  }
  const bool by_name = !steps[0].index.has_value();
  if (!by_name && (steps[1].name != "config" || steps.size() == 2)) return set(job, steps);
  const int index = by_name ? entry_of(job, steps[1]) : *steps[0].index;
  if (index >= job->plugins_size()) refuse("plugins[{}] does not exist: the job names {}", index, job->plugins_size());
  PluginUse* entry = job->mutable_plugins(index);
  const FoundPlugin* plugin = by_name ? schema_.plugin(steps[1].name) : nullptr;
  const pb::Descriptor* config = plugin != nullptr ? schema_.config_of(*plugin) : nullptr;
  const bool of_config = config != nullptr && config->FindFieldByName(steps[2].name) != nullptr;
  if (by_name && !of_config && steps[2].name == "library") {
    path_ = fmt::format("plugins[{}].library", index);
    return set(entry, steps.subspan(2));
  }
  set_in_plugin(entry, steps.subspan(2));
}

}  // namespace

Override parse_override(const std::string& text) {
  const std::string what = "--set " + printable(text, most_quoted);
  const std::size_t equal = text.find('=');
  if (equal == std::string::npos)
    fail(ErrorKind::config, "{}: there is no '='; write --set model.hidden_size=128", what);
  Override change{text, {}, text.substr(equal + 1), false};
  std::size_t end = equal;
  if (end > 0 && text[end - 1] == '+') {
    change.append = true;
    --end;
  }
  change.path = parse_path(what, std::string_view(text).substr(0, end));
  return change;
}

std::string apply_override(const Override& change, const Schema& schema, Job* job) {
  Setter setter(change, schema);
  setter.set_in_job(job);
  return setter.path();
}

}  // namespace ananke
