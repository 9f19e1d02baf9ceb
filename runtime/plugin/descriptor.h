// The plugin boundary. A plugin is one .so made by CMake's ananke_plugin(...); its source ends in one line:
//
//   ANANKE_PLUGIN(Optimizer, AdamW, ananke::plugin::AdamW)     role, class, config message
//   ANANKE_PLUGIN(Observer, Whisper)                           a plugin without a config
//
// at namespace scope, outside any unnamed namespace. The class derives from the role's class (runtime/roles/) and has
// the constructor (const RoleContext&, const ConfigMessage&), or (const RoleContext&) when it has no config.
// Name, role, version and description come from ananke_plugin(...), for this descriptor and the ELF note alike.
//
// What happens: the note is read and checked before dlopen (note.h); then ananke_plugin_v1() is called and compared
// with the note (registry.h); then create() builds the role object from the serialized config. Nothing here throws:
// create() turns an exception into an ErrorKind and a message. The object is deleted by the host through the role's
// virtual destructor; equal fingerprints make that safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "runtime/base/error.h"
#include "runtime/plugin/fingerprint.h"

namespace ananke {

struct RoleContext;  // runtime/roles/context.h

extern "C" {

// All pointers are to constants that live as long as the process (a plugin is never unloaded).
struct PluginDescriptorV1 {
  std::uint32_t struct_size;   // sizeof(PluginDescriptorV1): checked before anything else is read
  const char* role;            // "optimizer"
  const char* name;            // "adamw"
  const char* version;         // the plugin's own
  const char* fingerprint;     // ANANKE_FINGERPRINT of the plugin's build
  const char* config_message;  // "ananke.plugin.AdamW"; empty: takes no config
  const char* description;     // one line
  // context: a RoleContext. config: the serialized config message, may be empty (all defaults).
  // Returns 0 and sets *object to a role object (a pointer to the role's class) that the caller deletes; or returns an
  // ErrorKind and writes the reason to message (zero-terminated, cut to message_bytes). Never throws.
  int (*create)(const void* context, const void* config, std::size_t config_bytes, void** object, char* message,
                std::size_t message_bytes);
};

}  // extern "C"

inline constexpr const char* plugin_entry_symbol = "ananke_plugin_v1";
using PluginEntryV1 = const PluginDescriptorV1* (*)();

namespace detail {

template <class Role, class Class, class... Config>
std::unique_ptr<Role> construct_role(const RoleContext& context, std::string_view bytes, const char* message_name) {
  static_assert(sizeof...(Config) <= 1, "a plugin has one config message or none");
  static_assert(std::is_base_of_v<Role, Class>, "the plugin's class must derive from its role's class");
  static_assert(std::has_virtual_destructor_v<Role>);
  if constexpr (sizeof...(Config) == 0) {
    if (!bytes.empty()) fail(ErrorKind::config, "it takes no config, but was given one; remove the config");
    return std::make_unique<Class>(context);
  } else {
    auto config = std::make_unique<std::tuple_element_t<0, std::tuple<Config...>>>();
    if (config->GetDescriptor()->full_name() != message_name) {
      fail(ErrorKind::plugin,
           "its source names the config message {}, its build {}; make MESSAGE of ananke_plugin() equal",
           config->GetDescriptor()->full_name(), message_name);
    }
    if (!config->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
      fail(ErrorKind::internal, "{} bytes of config are not a {}", bytes.size(), message_name);
    }
    return std::make_unique<Class>(context, *config);
  }
}

template <class Role, class Class, class... Config>
int create_role(const char* message_name, const void* context, const void* config, std::size_t config_bytes,
                void** object, char* message, std::size_t message_bytes) noexcept {
  const auto say = [&](ErrorKind kind, const char* text) {
    if (message_bytes > 0) std::snprintf(message, message_bytes, "%s", text);
    return static_cast<int>(kind);
  };
  try {
    const std::string_view bytes(static_cast<const char*>(config), config_bytes);
    std::unique_ptr<Role> role =
        construct_role<Role, Class, Config...>(*static_cast<const RoleContext*>(context), bytes, message_name);
    *object = role.release();
    return 0;
  } catch (const Error& error) {
    return say(error.kind(), error.what());
  } catch (const std::exception& error) {
    return say(ErrorKind::plugin, error.what());
  } catch (...) {
    return say(ErrorKind::plugin, "it threw something that is no std::exception");
  }
}

}  // namespace detail
}  // namespace ananke

// ANANKE_PLUGIN(Role, Class[, ConfigMessage])
#define ANANKE_PLUGIN(Role, ...)                                                                                     \
  static_assert(std::string_view(Role::role) == ANANKE_PLUGIN_ROLE,                                                  \
                "ANANKE_PLUGIN's role differs from ROLE of ananke_plugin()");                                        \
  extern "C" __attribute__((visibility("default"))) const ::ananke::PluginDescriptorV1* ananke_plugin_v1() {         \
    static constexpr ::ananke::PluginDescriptorV1 descriptor = {                                                     \
        .struct_size = sizeof(::ananke::PluginDescriptorV1),                                                         \
        .role = ANANKE_PLUGIN_ROLE,                                                                                  \
        .name = ANANKE_PLUGIN_NAME,                                                                                  \
        .version = ANANKE_PLUGIN_VERSION,                                                                            \
        .fingerprint = ANANKE_FINGERPRINT,                                                                           \
        .config_message = ANANKE_PLUGIN_MESSAGE,                                                                     \
        .description = ANANKE_PLUGIN_DESCRIPTION,                                                                    \
        .create =                                                                                                    \
            [](const void* context, const void* config, std::size_t config_bytes, void** object, char* message,      \
               std::size_t message_bytes) {                                                                          \
              return ::ananke::detail::create_role<Role, __VA_ARGS__>(ANANKE_PLUGIN_MESSAGE, context, config,        \
                                                                      config_bytes, object, message, message_bytes); \
            },                                                                                                       \
    };                                                                                                               \
    return &descriptor;                                                                                              \
  }                                                                                                                  \
  static_assert(true)
