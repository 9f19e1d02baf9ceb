#include "runtime/engine/engine.h"

#include "ananke/job.pb.h"
#include "runtime/base/error.h"
#include "runtime/config/job.h"
#include "runtime/plugin/registry.h"

namespace ananke {
namespace {

template <class Role>
std::unique_ptr<Role> make_only(const Job& job, const PluginRegistry& plugins, const RoleContext& context) {
  const std::vector<std::string> names = plugins.names(Role::role);
  if (names.size() != 1) {
    std::string list;
    for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
    fail(ErrorKind::config, "a job needs one plugin of role {}, this one has {}{}{}; name one under plugins",
         Role::role, names.size(), names.empty() ? "" : ": ", list);
  }
  return plugins.create<Role>(names[0], context, std::string(config_of(job, names[0])));
}

}  // namespace

EngineRoles make_roles(const Job& job, const PluginRegistry& plugins, const RoleContext& context) {
  EngineRoles roles;
  roles.backend = make_only<Backend>(job, plugins, context);
  roles.parameters = make_only<Parameters>(job, plugins, context);
  for (const std::string& name : plugins.names(Optimizer::role)) {
    roles.optimizers.emplace(name, plugins.create<Optimizer>(name, context, std::string(config_of(job, name))));
  }
  return roles;
}

Engine::Engine(EngineRoles roles, const RoleContext& context, Rendezvous& rendezvous)
    : context_(context),
      rendezvous_(rendezvous),
      roles_(std::move(roles)),
      table_(context.job.model()),
      placement_(table_, context.mesh),
      experts_(roles_.backend->operators()) {
  ANANKE_CHECK(context.mesh.ranks() == rendezvous.size() && context.rank == rendezvous.rank(),
               "rank {} of mesh {} in a world of {}", context.rank, to_string(context.mesh), rendezvous.size());
}

Engine::~Engine() {
  // Work still under way, when an error unwinds this rank, may wait for peers that are gone.
  for (Communicator* communicator : {world_.get(), shard_.get(), replicate_.get()}) {
    if (communicator) communicator->abort();
  }
  pass_.reset();
  roles_.parameters.reset();  // its buffers and communicator uses end before the communicators and the device
}

PassParts Engine::parts() const {
  return {context_.job.model(), table_, placement_, *roles_.backend, *roles_.parameters, activations_, experts_};
}

std::vector<Fragment> Engine::owned() const {
  return placement_.fragments(coordinates(context_.mesh, context_.rank).shard);
}

std::vector<PlanLine> Engine::plan(const PassLimits& limits) const {
  std::vector<PlanLine> lines = roles_.parameters->plan(table_, placement_);
  for (PlanLine& line : Pass::plan(parts(), limits)) lines.push_back(std::move(line));
  return lines;
}

void Engine::compare_across_ranks() {
  const std::string mine = placement_.hash();
  const std::vector<std::string> all = rendezvous_.exchange("placement hash", {}, mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == mine) continue;
    fail(
        ErrorKind::config,
        "rank {} places parameters by table {}, rank {} by table {}: they run different jobs or different builds; make "
        "the job file and the installation the same on all nodes",
        context_.rank, mine, rank, all[rank]);
  }
}

void Engine::start(const PassLimits& limits) {
  compare_across_ranks();
  std::vector<int> everyone;
  for (int rank = 0; rank < context_.mesh.ranks(); ++rank) everyone.push_back(rank);
  Backend& backend = *roles_.backend;
  world_ = backend.make_communicator("world", everyone, rendezvous_);
  shard_ = backend.make_communicator("shard", shard_group(context_.mesh, context_.rank), rendezvous_);
  replicate_ = backend.make_communicator("replicate", replicate_group(context_.mesh, context_.rank), rendezvous_);
  roles_.parameters->start({backend, table_, placement_, *shard_, *replicate_});
  pass_ = std::make_unique<Pass>(parts(), limits);
}

}  // namespace ananke
