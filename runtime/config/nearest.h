// "did you mean": the valid name nearest to a wrong one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ananke {

// Insertions, deletions, substitutions and swaps of neighbours that turn a into b, upper and lower case being equal.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The nearest of `names` if it is near enough to be a slip of the pen (a third of the word, at least 2 edits), else "".
std::string nearest_name(std::string_view wrong, const std::vector<std::string>& names);

// "; did you mean 'x'?", or what there is where nothing is near: "; there are: a, b, c". Empty without names.
std::string suggestion(std::string_view wrong, const std::vector<std::string>& names);

}  // namespace ananke
