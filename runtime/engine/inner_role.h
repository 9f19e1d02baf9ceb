// A role made of another plugin's: a backend that is the host backend but for one operator, parameters that are fsdp
// but watched. What goes wrong inside is told with both names.
//
//   MyBackend(const RoleContext& context, const plugin::MyBackend& config)
//       : host_(make_inner<Backend>("backend_host", context, config.base())) {}
#pragma once

#include <memory>
#include <string>

#include "runtime/engine/guarded_roles.h"
#include "runtime/plugin/registry.h"

namespace ananke {

namespace detail {
struct InnerPlugin {
  PluginRegistry plugins;
  std::string config;  // serialized
};
InnerPlugin load_inner(const std::string& name, const std::string& config);
}  // namespace detail

// Loads plugin `name` as a job would (ANANKE_PLUGIN_PATH, then beside libananke) and builds its role object. `config`
// is text as in a job's config { [...] { HERE } }. For constructors of plugins. Throws Error(config or plugin) when
// there is no such plugin, its role is another, its config has no such field, or it is the plugin that asks. It is not
// part of the job: its file is not compared among the nodes.
template <class Role>
std::unique_ptr<Role> make_inner(const std::string& name, const RoleContext& context, const std::string& config = "") {
  const detail::InnerPlugin inner = detail::load_inner(name, config);
  return guarded(inner.plugins.create<Role>(name, context, inner.config), inner.plugins.guard(name), context);
}

}  // namespace ananke
