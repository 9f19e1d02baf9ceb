// The bash completion, made from what the verbs say of themselves.
#pragma once

#include <span>
#include <string>

#include "launcher/command_options.h"

namespace ananke {

// A script for bash 4 or later, to be sourced. Plugin names are asked of `ananke plugins --names` when they are needed.
std::string bash_completion(std::span<const CommandText> commands);

}  // namespace ananke
