// What a run would do, known without peers, device memory or a run folder: a job's plugins are loaded and its roles
// built, as a worker does first, and asked for their plans.
#pragma once

#include <cstdint>
#include <string>

namespace ananke {

class Job;
class Site;

struct DryRun {
  std::string tables;                  // parameters, placement, memory of rank 0
  std::string plan;                    // steps, tokens, schedule, learning rate, evaluation: one line each
  std::uint64_t checkpoint_bytes = 0;  // of the tensors of one checkpoint
};

// `job` is resolved and checked. Throws what a worker would up to its start: Error(plugin), Error(config), Error(data).
DryRun dry_run(const Job& job, const Site& site);

}  // namespace ananke
