#include "runtime/engine/inner_role.h"

#include "ananke/plugin.pb.h"
#include "runtime/base/hash.h"
#include "runtime/base/log.h"
#include "runtime/config/plugins.h"
#include "runtime/config/rules.h"
#include "runtime/config/text.h"

namespace ananke::detail {
namespace {

// A plugin that asks for itself, directly or by way of others, would be built without end.
void refuse_circle(const std::string& name) {
  for (PluginCallPtr call = PluginScope::current(); call; call = call->caller) {
    if (call->text.find(fmt::format(" plugin '{}' (", name)) == std::string::npos) continue;
    fail(ErrorKind::config, "plugin '{}' is to be built of itself; name another", name);
  }
}

std::string serialized(const std::string& name, const std::string& text, const Schema& schema) {
  const auto* descriptor = schema.config_of(*schema.plugin(name));
  if (descriptor == nullptr) {
    if (!text.empty()) fail(ErrorKind::config, "plugin '{}' takes no config, but was given: {}", name, text);
    return {};
  }
  const auto message = schema.make(descriptor);
  parse_piece(fmt::format("config of plugin '{}'", name), text, schema, message.get());
  for (const Problem& problem : check_rules(*message, schema)) {
    fail(ErrorKind::config, "config of plugin '{}': {} {}", name, problem.path, problem.message);
  }
  return message->SerializeAsString();
}

}  // namespace

InnerPlugin load_inner(const std::string& name, const std::string& config) {
  refuse_circle(name);
  const auto at_hand = find_plugins({}, plugin_search_path());
  const FoundPlugin* plugin = at_hand->schema.plugin(name);
  if (plugin == nullptr) fail(ErrorKind::config, "{}", at_hand->why_missing(name));
  const PluginCallPtr asks = PluginScope::current();
  InnerPlugin inner{PluginRegistry(asks ? asks->trail : std::make_shared<CallTrail>()),
                    serialized(name, config, at_hand->schema)};
  inner.plugins.load(name, plugin->file);
  log_info("plugin '{}' is {} with hash {}", name, plugin->file.string(), hash_file(plugin->file));
  return inner;
}

}  // namespace ananke::detail
