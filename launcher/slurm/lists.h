// Slurm's short forms of lists, read without asking Slurm.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ananke {

// "node-[001-003,010]-[01-02],login" -> node-001-01, node-001-02, node-002-01, ..., login: in the order written, the
// last brackets counting fastest; numbers keep their leading zeros. Throws Error(config) quoting `what` ("the
// environment's SLURM_JOB_NODELIST"), the text and the place; also for more than a million names.
std::vector<std::string> parse_host_list(const std::string& what, std::string_view text);

// "72(x3),36" -> 72, 72, 72, 36: a number for each node. Throws Error(config) likewise.
std::vector<int> parse_counts(const std::string& what, std::string_view text);

}  // namespace ananke
