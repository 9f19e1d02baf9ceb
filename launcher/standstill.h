// Where the ranks of a job stand that does not get on, in lines for people.
#pragma once

#include <string>
#include <vector>

#include "runtime/control/control_server.h"

namespace ananke {

// One line for ranks that say the same of themselves, those behind first: "ranks 0-2: step 17, item 12 of 40 (...),
// waiting in ...". `left_out` is not told of. At most `most` lines, the last of which then counts the rest.
std::vector<std::string> where_ranks_are(const std::vector<WorkerStatus>& workers, int left_out, std::size_t most = 12);

// The first `most` lines of a text, each with `indent` in front; a last one says how many are left.
std::string indented(const std::string& text, const std::string& indent, std::size_t most);

}  // namespace ananke
