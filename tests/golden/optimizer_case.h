// An optimizer's recorded case: hyper.json and case.safetensors with param.<i>.step<k> and grad.<i>.step<k>.
#pragma once

#include <filesystem>
#include <string>

#include "runtime/plugin/catalog.h"

namespace ananke::golden {

// "optimizer" of hyper.json. Throws Error(data) naming the file when there is none.
std::string optimizer_of(const std::filesystem::path& folder);

// Runs the optimizer plugin on the backend (test_gpus.h) from step 0 with the recorded gradients and prints the largest
// difference of each parameter over all steps. True when all are within the tolerance. Throws Error(data) naming key or
// tensor for a case that is not whole or asks for what the plugin does not do.
bool run_optimizer_case(const std::filesystem::path& folder, const PluginCatalog& catalog);

}  // namespace ananke::golden
