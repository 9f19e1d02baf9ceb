// "Did you mean": the known name closest to one that is not known.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ananke {

// By edit distance (insert, delete, replace, swap of neighbours), upper and lower case being equal; the first of equals.
// Empty when none is near enough to be meant: more than a third of its letters (at least two), or all of them, would
// have to change.
std::string nearest_name(std::string_view name, const std::vector<std::string>& known);

// "; did you mean 'x'?", or where nothing is near what there is: "; there are: a, b, c". Empty without known names.
std::string suggestion(std::string_view name, const std::vector<std::string>& known);

}  // namespace ananke
