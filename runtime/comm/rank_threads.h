// Ranks as threads of one process: parity checks, and tests that sweep meshes.
#pragma once

#include <chrono>
#include <functional>

#include "runtime/comm/rendezvous.h"

namespace ananke {

// Runs work(rank, rendezvous) on one thread per rank and waits for all. When one throws, exchanges of the others end
// at once; then the first error that is not merely the loss of a peer is thrown: Error(resource) where the machine
// gives no thread for a rank.
void run_rank_threads(int ranks, std::chrono::milliseconds deadline,
                      const std::function<void(int rank, Rendezvous& rendezvous)>& work);

}  // namespace ananke
