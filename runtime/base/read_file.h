// A whole file at once. For files that fit into memory: jobs, indexes, the kernel's small texts.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "runtime/base/error.h"

namespace ananke {

// The bytes of a regular file; nothing where there is none or it cannot be read: then `why` says why, where it is not
// null, in the system's words.
std::optional<std::string> read_file(const std::filesystem::path& file, std::string* why = nullptr);

// The same; throws Error(kind) "cannot read FILE: REASON".
std::string read_file(const std::filesystem::path& file, ErrorKind kind);

}  // namespace ananke
