// The messages that a job's text may hold: the product's own, and the config messages of the plugins at hand, built
// from their notes in a private pool. Nothing of a plugin is loaded.
#pragma once

#include <google/protobuf/any.pb.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/text_format.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/plugin/catalog.h"

namespace ananke {

class Schema final : public google::protobuf::TextFormat::Finder {
 public:
  Schema();

  // Throws Error(plugin) when the note's descriptors do not fit together, or lack the config message.
  void add(const FoundPlugin& plugin);

  // Plugins that were found but cannot be used: for messages that say why a name or config is not known.
  void add_refused(RefusedPlugin plugin) { refused_.push_back(std::move(plugin)); }
  const std::vector<RefusedPlugin>& refused() const { return refused_; }

  const std::vector<FoundPlugin>& plugins() const { return plugins_; }
  std::vector<std::string> plugin_names(std::string_view role = "") const;
  // Null when there is none. A pointer holds until the next add().
  const FoundPlugin* plugin(std::string_view name) const;
  const FoundPlugin* plugin_of_message(std::string_view message) const;
  // Config message of a plugin, null when it takes none.
  const google::protobuf::Descriptor* config_of(const FoundPlugin& plugin) const;

  // The message inside an Any, as a dynamic message (valid as long as this schema). Throws Error(config) naming the
  // type where it is not known or the bytes are not of it: never for an Any that the functions of text.h read.
  std::unique_ptr<google::protobuf::Message> unpack(const google::protobuf::Any& any) const;
  std::unique_ptr<google::protobuf::Message> make(const google::protobuf::Descriptor* descriptor) const;

  // How the text format asks for the message of "[ananke/ananke.plugin.AdamW]".
  const google::protobuf::Descriptor* FindAnyType(const google::protobuf::Message& message, const std::string& prefix,
                                                  const std::string& name) const override;

 private:
  std::unique_ptr<google::protobuf::DescriptorPool> pool_;
  std::unique_ptr<google::protobuf::DynamicMessageFactory> factory_;
  std::vector<FoundPlugin> plugins_;
  std::vector<RefusedPlugin> refused_;
};

// Any's type_url for a message: "ananke/ananke.plugin.AdamW". And back: what follows the last '/'.
std::string type_url(std::string_view message);
std::string message_of_url(std::string_view url);
// Serialized message packed with the "ananke/" prefix.
void pack(const google::protobuf::Message& message, google::protobuf::Any* any);

// "message Model has no field 'x'", and what to write instead.
std::string no_such_field(const google::protobuf::Descriptor* message, std::string_view name);

// Names for suggestions.
std::vector<std::string> field_names(const google::protobuf::Descriptor* message);
std::vector<std::string> value_names(const google::protobuf::EnumDescriptor* values);

}  // namespace ananke
