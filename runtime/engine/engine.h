// One rank's working whole: the roles of a job, the communicators of its mesh, the parameters and the pass that runs
// schedules over them. Training, parity and the tests are built on it.
//
//   EngineRoles roles = make_roles(job, plugins, context);     no device, no peers
//   Engine engine(std::move(roles), context, rendezvous);
//   print(engine.plan(limits));                                before anything is allocated
//   engine.start(limits);                                      device, communicators, memory
//   engine.pass().run(...)
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "runtime/comm/placement.h"
#include "runtime/engine/optimizer_step.h"
#include "runtime/engine/pass.h"
#include "runtime/engine/resident_activations.h"
#include "runtime/model/local_experts.h"

namespace ananke {

class PluginRegistry;

struct EngineRoles {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Parameters> parameters;
  OptimizerMap optimizers;
};

// Builds the role objects that the job names, from plugins already loaded. Throws Error(config) when a role has none
// or two.
EngineRoles make_roles(const Job& job, const PluginRegistry& plugins, const RoleContext& context);

class Engine {
 public:
  Engine(EngineRoles roles, const RoleContext& context, Rendezvous& rendezvous);
  ~Engine();

  // Memory of this rank by purpose: every role's lines and the pass's.
  std::vector<PlanLine> plan(const PassLimits& limits) const;
  // Compares the placement's hash across ranks, makes the communicators, allocates. Weights are zero until set.
  void start(const PassLimits& limits);

  const RoleContext& context() const { return context_; }
  const ParameterTable& table() const { return table_; }
  const Placement& placement() const { return placement_; }
  std::vector<Fragment> owned() const;  // what this rank owns, before start
  Backend& backend() { return *roles_.backend; }
  Device& device() { return roles_.backend->device(); }
  Stream& compute() { return device().stream(Resource::compute); }
  Parameters& parameters() { return *roles_.parameters; }
  const OptimizerMap& optimizers() const { return roles_.optimizers; }
  Communicator& world() { return *world_; }
  Pass& pass() { return *pass_; }
  // Replicas hold equal fragments: those of the first count in sums, and are the ones written.
  bool first_replica() const { return coordinates(context_.mesh, context_.rank).replicate == 0; }

 private:
  void compare_across_ranks();
  PassParts parts() const;

  RoleContext context_;
  Rendezvous& rendezvous_;
  EngineRoles roles_;
  ParameterTable table_;
  Placement placement_;
  std::unique_ptr<Communicator> world_, shard_, replicate_;
  // Built-in roles.
  mutable ResidentActivations activations_;
  mutable LocalExperts experts_;
  std::unique_ptr<Pass> pass_;
};

}  // namespace ananke
