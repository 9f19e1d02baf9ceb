// Tables in plain text, for what commands print.
#pragma once

#include <string>
#include <vector>

namespace ananke {

// Columns two apart; the first to the left, the others to the right; `indent` blanks in front. Rows may differ in
// length.
std::string text_table(const std::vector<std::vector<std::string>>& rows, int indent = 2);

}  // namespace ananke
