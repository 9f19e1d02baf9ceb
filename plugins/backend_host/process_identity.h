// Which process a rank lives in: ranks of one process exchange data by memory copies.
#pragma once

#include <string>

namespace ananke {

// Equal for two ranks exactly when both are threads of one process: host, process id and a number drawn by the process
// (hosts of one name and containers with process ids of their own exist).
const std::string& process_identity();

}  // namespace ananke
