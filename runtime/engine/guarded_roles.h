// Role objects of plugins, wrapped so that a fault is the plugin's by name (plugin/plugin_call.h), and so that what a
// plugin returns is looked at before the engine computes with it: views of the wrong size, rows that are none, sizes
// without sense. A backend's device, operators and communicators are wrapped with it. The checks are per call, never
// per element of a tensor; only rows, which are small, are read.
#pragma once

#include <memory>

#include "runtime/plugin/plugin_call.h"
#include "runtime/roles/activations.h"
#include "runtime/roles/backend.h"
#include "runtime/roles/batches.h"
#include "runtime/roles/experts.h"
#include "runtime/roles/observer.h"
#include "runtime/roles/optimizer.h"
#include "runtime/roles/parameters.h"

namespace ananke {

std::unique_ptr<Backend> guarded(std::unique_ptr<Backend> role, PluginGuard guard, const RoleContext& context);
std::unique_ptr<Parameters> guarded(std::unique_ptr<Parameters> role, PluginGuard guard, const RoleContext& context);
std::unique_ptr<Optimizer> guarded(std::unique_ptr<Optimizer> role, PluginGuard guard, const RoleContext& context);
std::unique_ptr<Experts> guarded(std::unique_ptr<Experts> role, PluginGuard guard, const RoleContext& context);
std::unique_ptr<Activations> guarded(std::unique_ptr<Activations> role, PluginGuard guard, const RoleContext& context);
std::unique_ptr<Batches> guarded(std::unique_ptr<Batches> role, PluginGuard guard, const RoleContext& context);
std::unique_ptr<Observer> guarded(std::unique_ptr<Observer> role, PluginGuard guard, const RoleContext& context);

}  // namespace ananke
