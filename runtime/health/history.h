// What earlier checks measured, a file for each node, NODE.jsonl, in the folder health.history of the site: differences
// of counters, and what is unusual for the node.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "ananke/health.pb.h"

namespace ananke {

// Oldest first; none where there is no such file. Lines that are none are left out.
std::vector<NodeHealth> read_history(const std::filesystem::path& folder, const std::string& node);

// The newest since the node's boot; null: there is none.
const NodeHealth* since_boot(const std::vector<NodeHealth>& history, const std::string& boot);

// Adds the values that later checks compare with; keeps the last 64. Throws Error(resource).
void add_to_history(const std::filesystem::path& folder, const NodeHealth& node);

}  // namespace ananke
