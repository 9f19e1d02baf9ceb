// hyper.json, as torch.optim's groups name things, made into a plugin's config message.
#pragma once

#include <filesystem>
#include <string>

#include "runtime/base/json.h"

namespace ananke {
class PluginNote;
}

namespace ananke::golden {

Json read_hyper(const std::filesystem::path& folder);

// The serialized config. Throws Error(data) naming the key for one that the plugin's message does not have, or whose
// value asks for other mathematics.
std::string make_config(const Json& hyper, const PluginNote& note);

}  // namespace ananke::golden
