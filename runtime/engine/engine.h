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
#include "runtime/roles/batches.h"
#include "runtime/roles/observer.h"

namespace ananke {

class PluginRegistry;

struct EngineRoles {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Parameters> parameters;
  OptimizerMap optimizers;
  // Null: the built-in one (local experts, resident activations, sequential batches).
  std::unique_ptr<Experts> experts;
  std::unique_ptr<Activations> activations;
  std::unique_ptr<Batches> batches;  // of training; held-out rows are always the built-in's
};

// Builds the role objects that the job names, from plugins already loaded, each behind its guard (guarded_roles.h).
// Throws Error(config) when a role has none or two, or is one that the engine does not use.
EngineRoles make_roles(const Job& job, const PluginRegistry& plugins, const RoleContext& context);

// The observers that the job names, by plugin name; for rank 0.
std::map<std::string, std::unique_ptr<Observer>> make_observers(const Job& job, const PluginRegistry& plugins,
                                                                const RoleContext& context);

class Engine {
 public:
  Engine(EngineRoles roles, const RoleContext& context, Rendezvous& rendezvous);
  ~Engine();

  // Memory of this rank by purpose: every role's lines and the pass's.
  std::vector<PlanLine> plan(const PassLimits& limits) const;
  // What these exchange at most.
  std::vector<CollectiveUse> exchanges(const PassLimits& limits) const;
  // Ends what is under way and waits for it, so that memory which work on the streams uses may be freed: before
  // anything made beside the engine is destroyed. Communicators are of no use any more. What the work throws is
  // dropped.
  void settle() noexcept;
  // Compares the placement's hash across ranks, makes the communicators, allocates. Weights are zero until set.
  void start(const PassLimits& limits);

  const RoleContext& context() const { return context_; }
  const ParameterTable& table() const { return table_; }
  const Placement& placement() const { return placement_; }
  std::vector<Fragment> owned() const;  // what this rank owns, before start
  Backend& backend() const { return *roles_.backend; }
  Device& device() { return roles_.backend->device(); }
  Stream& compute() { return device().stream(Resource::compute); }
  Parameters& parameters() { return *roles_.parameters; }
  Place place_of(int unit) const { return roles_.parameters->place_of(table_, unit); }
  const Activations& activations() const { return *roles_.activations; }
  const OptimizerMap& optimizers() const { return roles_.optimizers; }
  // The batches plugin of the job, once; null when it has none.
  std::unique_ptr<Batches> take_batches() { return std::move(roles_.batches); }
  Communicator& world() { return *world_; }
  // Names of ranks' nodes, once started; empty where nobody has said.
  const std::vector<std::string>& nodes() const { return nodes_; }
  Communicator& shard() { return *shard_; }
  Communicator& replicate() { return *replicate_; }
  // What this rank received since start, of all roles.
  Traffic traffic() const;
  ActivationTraffic activation_traffic() { return roles_.activations->traffic(); }
  Pass& pass() { return *pass_; }
  RouterBalancing& routers() { return *routers_; }
  const RouterBalancing& routers() const { return *routers_; }
  // Replicas hold equal fragments: those of the first count in sums, and are the ones written. Within a replica every
  // element has one owner, of dense units and of experts alike.
  bool first_replica() const { return at_.replicate == 0; }

 private:
  void compare_across_ranks();
  void make_communicators();
  PassParts parts() const;

  RoleContext context_;
  MeshCoordinates at_;
  Rendezvous& rendezvous_;
  EngineRoles roles_;
  ParameterTable table_;
  Placement placement_;
  std::vector<std::string> nodes_;
  std::unique_ptr<Communicator> world_, shard_, replicate_, expert_, node_;
  std::unique_ptr<Communicator> own_expert_shard_;  // null without an expert axis: it is the shard axis then
  std::unique_ptr<RouterBalancing> routers_;
  std::unique_ptr<Pass> pass_;
  bool started_ = false;  // there may be work on the streams
};

// Declared behind memory that the engine's work uses: an error that unwinds it finds no work under way.
class Settling {
 public:
  explicit Settling(Engine& engine) : engine_(engine) {}
  ~Settling() { engine_.settle(); }
  Settling(const Settling&) = delete;
  Settling& operator=(const Settling&) = delete;

 private:
  Engine& engine_;
};

}  // namespace ananke
