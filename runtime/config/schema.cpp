#include "runtime/config/schema.h"

#include <algorithm>

#include "ananke/options.pb.h"
#include "ananke/plugin.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/nearest.h"
#include "runtime/base/printable.h"

namespace ananke {
namespace {

namespace pb = google::protobuf;

// protobuf's complaints about descriptors, kept for our own message instead of going to standard error.
class FirstComplaint final : public pb::DescriptorPool::ErrorCollector {
 public:
  void AddError(const std::string& file, const std::string& element, const pb::Message*, ErrorLocation,
                const std::string& message) override {
    if (text.empty()) text = fmt::format("{}: {}: {}", file, element, message);
  }
  std::string text;
};

}  // namespace

// Files of the product and of protobuf itself come from the generated pool; a plugin's own are built here, also where
// the plugin is loaded in this process and the generated pool knows them.
Schema::Schema()
    : pool_(std::make_unique<pb::DescriptorPool>(pb::DescriptorPool::generated_pool())),
      factory_(std::make_unique<pb::DynamicMessageFactory>(pool_.get())) {}

void Schema::add(const FoundPlugin& plugin) {
  const PluginNote& note = *plugin.note;
  for (const pb::FileDescriptorProto& file : note.files().file()) {
    if (file.name().starts_with("google/protobuf/") || file.name().starts_with("ananke/")) continue;
    FirstComplaint complaint;
    if (pool_->BuildFileCollectingErrors(file, &complaint) == nullptr) {
      fail(ErrorKind::plugin,
           "{}: the config files in the note of plugin '{}' do not fit together: {}; rebuild the plugin",
           plugin.file.string(), note.name(), complaint.text);
    }
  }
  if (!note.config_message().empty() && pool_->FindMessageTypeByName(note.config_message()) == nullptr) {
    fail(ErrorKind::plugin,
         "{}: the note of plugin '{}' has no message '{}', its MESSAGE; rebuild the plugin with MESSAGE and "
         "PROTO of ananke_plugin() in agreement",
         plugin.file.string(), note.name(), note.config_message());
  }
  plugins_.push_back(plugin);
}

std::vector<std::string> Schema::plugin_names(std::string_view role) const {
  std::vector<std::string> names;
  for (const FoundPlugin& plugin : plugins_) {
    if (role.empty() || role == plugin.note->role()) names.push_back(plugin.note->name());
  }
  return names;
}

const FoundPlugin* Schema::plugin(std::string_view name) const {
  const auto it = std::find_if(plugins_.begin(), plugins_.end(), [&](auto& one) { return one.note->name() == name; });
  return it == plugins_.end() ? nullptr : &*it;
}

const FoundPlugin* Schema::plugin_of_message(std::string_view message) const {
  const auto it =
      std::find_if(plugins_.begin(), plugins_.end(), [&](auto& one) { return one.note->config_message() == message; });
  return it == plugins_.end() || message.empty() ? nullptr : &*it;
}

const pb::Descriptor* Schema::config_of(const FoundPlugin& plugin) const {
  const std::string& message = plugin.note->config_message();
  return message.empty() ? nullptr : pool_->FindMessageTypeByName(message);
}

std::unique_ptr<pb::Message> Schema::make(const pb::Descriptor* descriptor) const {
  return std::unique_ptr<pb::Message>(factory_->GetPrototype(descriptor)->New());
}

std::unique_ptr<pb::Message> Schema::unpack(const pb::Any& any) const {
  const std::string name = message_of_url(any.type_url());
  const pb::Descriptor* descriptor = pool_->FindMessageTypeByName(name);
  if (descriptor == nullptr)
    fail(ErrorKind::config, "no plugin at hand has the config message '{}'", printable(name, 200));
  std::unique_ptr<pb::Message> message = make(descriptor);
  if (!message->ParsePartialFromString(any.value())) {
    fail(ErrorKind::config, "{} bytes of config are no {}", any.value().size(), name);
  }
  return message;
}

const pb::Descriptor* Schema::FindAnyType(const pb::Message&, const std::string&, const std::string& name) const {
  const FoundPlugin* plugin = plugin_of_message(name);
  return plugin == nullptr ? nullptr : config_of(*plugin);
}

std::string type_url(std::string_view message) { return fmt::format("ananke/{}", message); }

std::string message_of_url(std::string_view url) { return std::string(url.substr(url.rfind('/') + 1)); }

void pack(const pb::Message& message, pb::Any* any) {
  any->set_type_url(type_url(message.GetDescriptor()->full_name()));
  any->set_value(message.SerializePartialAsString());
}

std::string no_such_field(const pb::Descriptor* message, std::string_view name) {
  const pb::MessageOptions& options = message->options();
  for (int i = 0; i < options.ExtensionSize(former); ++i) {
    const FormerField& field = options.GetExtension(former, i);
    if (field.name() != name) continue;
    return fmt::format("message {} has no field '{}' any more; write {}", message->name(), name, field.instead());
  }
  return fmt::format("message {} has no field '{}'{}", message->name(), printable(name, 200),
                     suggestion(name, field_names(message)));
}

std::vector<std::string> field_names(const pb::Descriptor* message) {
  std::vector<std::string> names;
  for (int i = 0; i < message->field_count(); ++i) names.push_back(message->field(i)->name());
  return names;
}

std::vector<std::string> value_names(const pb::EnumDescriptor* values) {
  std::vector<std::string> names;
  for (int i = 0; i < values->value_count(); ++i) names.push_back(values->value(i)->name());
  return names;
}

}  // namespace ananke
