// The memory plans of a job's ranks, made without peers and without any device.
#pragma once

#include <vector>

#include "ananke/memory.pb.h"

namespace ananke {

class Job;
class Site;

struct RankPlans {
  int ranks = 0;
  int looked_at = 0;  // ranks whose plans were made: all of a small job, of a large one those that own or update most
  MemoryReport largest;  // of the rank that needs most on its device; of several the first
  MemoryReport host;     // of the rank that needs most of the host's memory
  bool on_host = false;  // the device's memory is the host's
};

// `job` is resolved and checked, and its plugins are found. Throws what a worker would up to its start.
RankPlans plan_ranks(const Job& job, const Site& site);

// Ranks of one node, as far as the site's hardware says; else all.
int ranks_of_node(const Site& site, int ranks);

}  // namespace ananke
