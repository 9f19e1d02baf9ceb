// What two runs have in common and what not. Reads their run folders, changes nothing.
#pragma once

#include <filesystem>

#include "ananke/comparison.pb.h"

namespace ananke {

// Throws Error(data) where a folder is no run's; what else cannot be read becomes a note.
RunComparison compare_runs(const std::filesystem::path& a, const std::filesystem::path& b);

}  // namespace ananke
