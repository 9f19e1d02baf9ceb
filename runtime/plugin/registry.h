// The plugins of one job, loaded, and the role objects they build.
//
//   PluginRegistry plugins;
//   for (const PluginFile& file : job.resolved().plugins()) plugins.load(file.name(), file.path(), file.hash());
//   std::unique_ptr<Optimizer> adamw = plugins.create<Optimizer>("adamw", context, config_bytes);
//
// Several registries may exist in one process (ranks as threads) and be used at once; one registry belongs to one
// thread. A plugin is never unloaded: objects, typeinfo and protobuf descriptors of it may outlive any registry.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/plugin/descriptor.h"
#include "runtime/plugin/plugin_call.h"

namespace ananke {

class PluginRegistry {
 public:
  // `trail` is told which plugin is running; a registry without one keeps its own.
  explicit PluginRegistry(std::shared_ptr<CallTrail> trail = std::make_shared<CallTrail>())
      : trail_(std::move(trail)) {}

  // Loads the plugin after these checks, each refusal an Error(plugin) of one sentence naming both sides: the note and
  // fingerprint (note.h); its name is `name`; the file's hash is `hash` (empty: not compared); its proto files and
  // messages are not those of a plugin loaded from another file; dlopen; the descriptor says what the note says.
  // Loading the same name and file again does nothing.
  void load(const std::string& name, const std::filesystem::path& file, const std::string& hash = "");

  // Loaded plugins' names; those of one role when it is given. In order of loading.
  std::vector<std::string> names(std::string_view role = "") const;
  // Throws Error(internal) when it was not loaded.
  const PluginDescriptorV1& descriptor(const std::string& name) const;
  // To call its role object through. Throws likewise.
  PluginGuard guard(const std::string& name) const;

  // Builds the role object; the caller owns it. config: serialized config message, empty for all defaults.
  // Throws Error(config) when the plugin has another role, and what the plugin's constructor throws with its ErrorKind
  // kept (plugin, where it is no Error), naming the plugin and its file.
  template <class Role>
  std::unique_ptr<Role> create(const std::string& name, const RoleContext& context, std::string_view config) const {
    return std::unique_ptr<Role>(static_cast<Role*>(create_object(name, Role::role, &context, config)));
  }

 private:
  struct Loaded {
    std::filesystem::path file;
    const PluginDescriptorV1* descriptor = nullptr;
  };

  void* create_object(const std::string& name, std::string_view role, const void* context,
                      std::string_view config) const;
  const Loaded& loaded(const std::string& name) const;

  std::shared_ptr<CallTrail> trail_;
  std::map<std::string, Loaded> plugins_;
  std::vector<std::string> order_;
};

}  // namespace ananke
