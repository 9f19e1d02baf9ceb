// A router's recorded case: router.json and case.safetensors with x, gate, bias, indices, weights, dweights, grad.x and
// grad.gate (README.md).
#pragma once

#include <filesystem>

#include "runtime/plugin/catalog.h"

namespace ananke::golden {

// Runs the backend's router (test_gpus.h) forward and backward and prints the largest differences. True when every
// token chose the recorded experts and all numbers are within the tolerance. Throws Error(data) naming key or tensor
// for a case that is not whole.
bool run_router_case(const std::filesystem::path& folder, const PluginCatalog& catalog);

}  // namespace ananke::golden
