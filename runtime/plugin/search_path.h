// Where plugins and site profiles are looked for.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ananke {

using Folders = std::vector<std::filesystem::path>;

// Folders in an environment variable, separated by ':'; none when it is not set.
Folders folders_in_variable(const char* variable);

// The folder that libananke was loaded from.
std::filesystem::path runtime_folder();

// "a, b, c", for messages.
std::string list_of(const Folders& folders);

}  // namespace ananke
