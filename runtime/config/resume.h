// What a resumed job changed against the one that wrote the checkpoint, and which of it cannot be.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ananke {

class Job;
class Schema;
struct LoadedJob;  // config/job.h

struct FieldChange {
  std::string path;    // "model.hidden_size", "plugins.adamw.lr"
  std::string before;  // as text; "absent" where it was not there
  std::string after;
  bool refused;  // the schema says fixed_on_resume: model shape, data order
};

// "training.steps: 20 before, 30 now"
std::string to_string(const FieldChange& change);

// Both jobs resolved; `schema` knows the plugins of both (a config of an unknown plugin is compared by its bytes).
// A field that is left out equals one that states its default. `name`, `run_dir` and `resolved` are not compared.
// Pure, in the order of the schema.
std::vector<FieldChange> compare_for_resume(const Job& before, const Job& after, const Schema& schema);

// Throws Error(config) that names the source of the job `now` and lists every refused change and what to do.
void check_resume(const std::vector<FieldChange>& changes, const Job& now);

// Both of the above for a checkpoint of `step` that the job `before` wrote, and Error(config) when that step is past
// the last one of `now`.
std::vector<FieldChange> changes_of_resume(const Job& before, std::uint64_t step, const LoadedJob& now);

}  // namespace ananke
