// Runs a job's ranks as threads of the test, with the real plugins, and hands back what happened.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ananke/job.pb.h"
#include "ananke/memory.pb.h"
#include "ananke/telemetry.pb.h"
#include "runtime/comm/mesh.h"
#include "runtime/roles/backend.h"
#include "runtime/roles/batches.h"

namespace ananke {
struct EngineRoles;
}

namespace ananke {

// Two layers (the second with experts), generated documents of uneven length, 8 rows per step. `changes` is text format
// merged over it.
Job small_job(const std::filesystem::path& run_dir, const std::string& changes = "");

// Adds a plugin with its config in text format: add_plugin(job, "muon", "lr: 0.02").
void add_plugin(Job& job, const std::string& name, const std::string& config);

struct RunResult {
  std::vector<StepRecord> steps;
  std::vector<EvaluationRecord> evaluations;
  std::vector<std::string> events;  // texts
  std::vector<std::string> console;  // lines of rank 0
  // Whole parameters after the last step, and router biases (which every rank must hold the same bits of).
  std::map<std::string, std::vector<float>> weights;
  std::map<std::string, std::vector<float>> states;  // "<parameter> <state>" of the optimizer, whole
  std::vector<MemoryReport> memory;                  // by rank, at the end
};

struct RunRequest {
  MeshShape mesh;
  int microbatches = 1;  // per rank; rows_per_microbatch follows
  bool resume = false;
  std::uint64_t stop_at_step = 0;  // asked to stop in the phase below of this step; 0: never
  std::string stop_in = "step";
  int expert_chunks = 0;       // > 0: tokens are exchanged by plugin ep in so many
  bool uneven = false;         // first_gradients() only: ranks have different numbers of rows, some perhaps none; every
                               // microbatch is the same rows on all meshes
  std::int64_t skip_rows = 0;  // of the data, before the first step; for first_gradients
  bool expert_bf16 = false;    // tokens of plugin ep travel as bf16
  bool rounding = false;       // on tests/rounding_backend, which takes training.compute BF16
  bool sharing = false;        // on tests/sharing_backend over the host
  int slow_rank = -1;          // with `sharing`: takes twice as long for its work as the others; no clock is asked
  // first_gradients() on one rank only: these rows in one microbatch, instead of the built-in batches'.
  const Rows* rows = nullptr;
};

RunResult train(Job job, const RunRequest& request);
// Starts as train() does, from the newest checkpoint when `resume` is set, and takes no step: weights and states are
// what the ranks hold then, after a check that all replicas hold the same bits.
RunResult start_only(Job job, const RunRequest& request);

// Gradients of the first step from the initial weights, before any update, whole parameters; and that step's loss.
struct GradientResult {
  double loss = 0, auxiliary_loss = 0, z_loss = 0;
  std::int64_t valid_targets = 0;
  std::map<std::string, std::vector<float>> gradients;
  // Per parameter fragment and replica: the bits that replica holds, to compare replicas.
  std::map<std::string, std::vector<std::vector<float>>> by_replica;
  std::map<std::string, std::uint64_t> planned;  // bytes by purpose, of rank 0
};
GradientResult first_gradients(Job job, const RunRequest& request);

// Only backends and a communicator over all: work(rank, backend, world) on one thread per rank.
void run_backends(int ranks, const std::function<void(int rank, Backend& backend, Communicator& world)>& work);

// Only a job's roles: work(context, roles, rendezvous) on one thread per rank of the mesh.
void run_roles(const Job& job, const MeshShape& mesh,
               const std::function<void(const RoleContext&, EngineRoles&, Rendezvous&)>& work);

// What makes a job's roles, as often as it is called: work(context, make, rendezvous) on one thread per rank.
void run_makers(const Job& job, const MeshShape& mesh,
                const std::function<void(const RoleContext&, const std::function<EngineRoles()>&, Rendezvous&)>& work);

// Largest difference over the largest element of `wanted`; infinity where a value is no number.
double relative_difference(const std::vector<float>& got, const std::vector<float>& wanted);

}  // namespace ananke
