// A worker's rank from the node that it is on: which rank a process manager gave it does not matter.
#pragma once

#include "runtime/bootstrap/identity.h"

namespace ananke {

// The job's nodes in the order of their ranks, "a,b,c": set by the launcher where workers are on several.
constexpr const char* nodes_variable = "ANANKE_NODES";

// The identity with the rank, and the index of its node, that the environment's node order gives; as it is where that
// is unset or empty. Throws Error(config) where this worker's node is not among those, or has another number of workers
// than each of them has.
Identity in_node_order(Identity identity, const EnvironmentLookup& lookup);

}  // namespace ananke
