// The man page, made from what the verbs say of themselves.
#pragma once

#include <span>
#include <string>

#include "launcher/command_options.h"

namespace ananke {

// ananke(1) as roff with the macros of man(7).
std::string man_page(std::span<const CommandText> commands);

}  // namespace ananke
