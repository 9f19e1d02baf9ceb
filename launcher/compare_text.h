// A comparison of runs as tables for a terminal.
#pragma once

#include <cstddef>
#include <string>

#include "ananke/comparison.pb.h"

namespace ananke {

// Lines of at most `width` columns, as far as single words allow. Of long curves some steps are shown, evenly over all,
// the first, the last and the last common one among them.
std::string comparison_text(const RunComparison& comparison, std::size_t width);

}  // namespace ananke
