// How Slurm has its nodes wired, where it knows: asked of the controller, since a node's own variables
// (SLURM_TOPOLOGY_ADDR) only tell of that node.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/topology/places.h"

namespace ananke {

// By node, in the form of SLURM_TOPOLOGY_ADDR and _PATTERN. Of what `scontrol show topology` prints: lines
// "SwitchName=s0 Level=0 ... Nodes=n[0-3]" and "SwitchName=top Level=1 ... Switches=s[0-1]", or "BlockName=b1 ...
// Nodes=n[0-3]". Empty where it prints neither. Throws Error(config) for a list of nodes that is none.
std::map<std::string, SlurmAddress> parse_slurm_topology(std::string_view text);

// Places of nodes. Slurm is asked only where the site's names do not tell all groups; that it does not answer is one
// more notice. Throws as find_places() does.
Places places_of_nodes(const std::vector<std::string>& nodes, const Site& site, std::chrono::milliseconds deadline);

}  // namespace ananke
