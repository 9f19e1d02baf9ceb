// "Did you mean": the known name closest to one that is not known.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ananke {

// By edit distance (insert, delete, replace, swap of neighbours); the first of equals. Empty when none is near enough
// to be meant: more than a third of its letters (at least two) would have to change.
std::string nearest_name(std::string_view name, const std::vector<std::string>& known);

}  // namespace ananke
