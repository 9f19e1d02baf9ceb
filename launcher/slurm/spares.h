// Of an allocation with spare nodes, those that a job is better off without: by their health, and by what the job needs
// of their memory. Which of the others are used is not decided here.
#pragma once

#include <cstdint>
#include <string>

#include "ananke/health.pb.h"
#include "launcher/slurm/probe.h"

namespace ananke {

class Site;

struct SpareRequest {
  int spares = 0;    // nodes of the allocation beyond those that the job needs; 0: nodes are taken as they are
  std::string site;  // as --site takes it, for the health step on other nodes
  // With admission USE_SPARES what a rank needs of the host's memory; 0: not compared.
  std::uint64_t host_bytes = 0;
};

// Ranks of a node where neither site nor allocation says it: the spare nodes get none. 0: not to be said.
int ranks_per_node_with_spares(int ranks, int nodes, int spares);

// Moves nodes from `live` to `gone`, with the reason.
void leave_out_bad(const HealthReport& report, LiveNodes* nodes);
// Those whose NUMA nodes with CPUs have too little that is free or page cache, the node's ranks spread over them
// evenly. A node of which that is not known is left out, too.
void leave_out_small(const HealthReport& report, int ranks_per_node, std::uint64_t host_bytes, LiveNodes* nodes);

}  // namespace ananke
