#include "runtime/engine/engine.h"

#include <fmt/ranges.h>

#include "ananke/job.pb.h"
#include "runtime/base/error.h"
#include "runtime/config/job.h"
#include "runtime/engine/guarded_roles.h"
#include "runtime/engine/resident_activations.h"
#include "runtime/model/local_experts.h"
#include "runtime/plugin/registry.h"
#include "runtime/roles/compute_type.h"

namespace ananke {
namespace {

// What builds a job's role objects.
class Maker {
 public:
  Maker(const Job& job, const PluginRegistry& plugins, const RoleContext& context)
      : job_(job), plugins_(plugins), context_(context) {}

  template <class Role>
  std::unique_ptr<Role> make(const std::string& name) const {
    return guarded(plugins_.create<Role>(name, context_, config_of(job_, name)), plugins_.guard(name), context_);
  }

  // Null when there is none and `needed` is not set.
  template <class Role>
  std::unique_ptr<Role> make_only(bool needed) const {
    const std::vector<std::string> names = plugins_.names(Role::role);
    if (names.empty() && !needed) return nullptr;
    if (names.size() == 1) return make<Role>(names[0]);
    fail(ErrorKind::config, "a job needs one plugin of role {}, this one has {}{}{}; name one under plugins",
         Role::role, names.size(), names.empty() ? "" : ": ", fmt::join(names, ", "));
  }

  template <class Role>
  std::map<std::string, std::unique_ptr<Role>> make_all() const {
    std::map<std::string, std::unique_ptr<Role>> all;
    for (const std::string& name : plugins_.names(Role::role)) all.emplace(name, make<Role>(name));
    return all;
  }

 private:
  const Job& job_;
  const PluginRegistry& plugins_;
  const RoleContext& context_;
};

void refuse_unused_roles(const PluginRegistry& plugins) {
  for (const char* role : {"kernels", "check"}) {
    for (const std::string& name : plugins.names(role)) {
      fail(ErrorKind::config, "plugin '{}' has role {}, which this version does not use; remove it from the job", name,
           role);
    }
  }
}

// training.weights: every role that touches what owners store.
void refuse_unable_to_store(const Job& job, const PluginRegistry& plugins, const EngineRoles& roles) {
  const DType type = stored_type(job);
  const auto refuse = [&](const char* role, const std::string& name, const char* what) {
    fail(ErrorKind::config,
         "training.weights is {}, but {} '{}' {} no {}; remove the setting, or use a plugin that does",
         Training::Compute_Name(job.training().weights()), role, name, what, name_of(type));
  };
  const auto only = [&](const char* role) { return plugins.names(role).at(0); };
  if (!roles.backend->stores_in(type)) {
    refuse(Backend::role, only(Backend::role), "stores weights in");
  }
  if (!roles.parameters->stores_in(type)) {
    refuse(Parameters::role, only(Parameters::role), "stores weights in");
  }
  for (const OptimizerRule& rule : job.optimizer()) {
    const auto used = roles.optimizers.find(rule.use());
    if (used != roles.optimizers.end() && !used->second->stores_in(type)) {
      refuse(Optimizer::role, rule.use(), "updates weights in");
    }
  }
}

void refuse_unable(const Job& job, const PluginRegistry& plugins, const EngineRoles& roles) {
  const DType type = compute_type(job);
  const auto refuse = [&](const char* role, const char* what) {
    fail(ErrorKind::config,
         "training.compute is {}, but {} '{}' {} no {}; remove the setting, or use a plugin that does",
         Training::Compute_Name(job.training().compute()), role, plugins.names(role).at(0), what, name_of(type));
  };
  if (!roles.backend->computes_in(type)) refuse(Backend::role, "computes in");
  if (!roles.parameters->gathers_into(type)) refuse(Parameters::role, "gathers weights into");
  refuse_unable_to_store(job, plugins, roles);
  if (job.training().deterministic() && roles.backend->determinism().empty()) {
    fail(ErrorKind::config,
         "training.deterministic is set, but backend '{}' does not promise the same bits in every run; remove the "
         "setting, or use a backend that does",
         plugins.names(Backend::role).at(0));
  }
}

}  // namespace

EngineRoles make_roles(const Job& job, const PluginRegistry& plugins, const RoleContext& context) {
  refuse_unused_roles(plugins);
  const Maker maker(job, plugins, context);
  EngineRoles roles;
  roles.backend = maker.make_only<Backend>(true);
  roles.parameters = maker.make_only<Parameters>(true);
  roles.optimizers = maker.make_all<Optimizer>();
  roles.experts = maker.make_only<Experts>(false);
  roles.activations = maker.make_only<Activations>(false);
  roles.batches = maker.make_only<Batches>(false);
  refuse_unable(job, plugins, roles);
  if (context.mesh.expert > 1 && !(roles.experts && roles.experts->exchanges_tokens())) {
    fail(ErrorKind::config,
         "mesh.expert is {}, which needs a plugin of role experts that exchanges tokens{}; add plugins {{ use: \"ep\" "
         "}}",
         context.mesh.expert, roles.experts ? fmt::format(", and '{}' does not", plugins.names(Experts::role)[0]) : "");
  }
  return roles;
}

std::map<std::string, std::unique_ptr<Observer>> make_observers(const Job& job, const PluginRegistry& plugins,
                                                                const RoleContext& context) {
  return Maker(job, plugins, context).make_all<Observer>();
}

Engine::Engine(EngineRoles roles, const RoleContext& context, Rendezvous& rendezvous)
    : context_(context),
      at_(coordinates(context.mesh, context.rank)),
      rendezvous_(rendezvous),
      roles_(std::move(roles)),
      table_(context.job.model()),
      placement_(table_, context.mesh) {
  if (!roles_.experts) roles_.experts = std::make_unique<LocalExperts>();
  if (!roles_.activations) roles_.activations = std::make_unique<ResidentActivations>();
  roles_.experts->use(roles_.backend->operators());
  roles_.activations->use(roles_.backend->operators());
  ANANKE_CHECK(context.mesh.ranks() == rendezvous.size() && context.rank == rendezvous.rank(),
               "rank {} of mesh {} in a world of {}", context.rank, to_string(context.mesh), rendezvous.size());
}

void Engine::settle() noexcept {
  // Work still under way, when an error unwinds this rank, may wait for peers that are gone.
  for (Communicator* communicator :
       {world_.get(), shard_.get(), replicate_.get(), own_expert_shard_.get(), expert_.get(), node_.get()}) {
    if (communicator) communicator->abort();
  }
  for (int resource = 0; started_ && resource < resource_count; ++resource) {
    try {
      device().stream(static_cast<Resource>(resource)).synchronize();
    } catch (...) {  // whoever ran the step has been told
    }
  }
}

Engine::~Engine() {
  settle();
  pass_.reset();
  routers_.reset();
  roles_.activations.reset();
  roles_.experts.reset();
  roles_.parameters.reset();  // its buffers and communicator uses end before the communicators and the device
}

PassParts Engine::parts() const {
  return {context_.job.model(),
          table_,
          placement_,
          at_,
          compute_type(context_.job),
          *roles_.backend,
          *roles_.parameters,
          *roles_.activations,
          *roles_.experts};
}

Traffic Engine::traffic() const {
  Traffic all = roles_.parameters->traffic();
  for (TrafficLine& line : roles_.experts->traffic()) all.push_back(std::move(line));
  return all;
}

std::vector<Fragment> Engine::owned() const { return placement_.fragments(context_.rank); }

std::vector<PlanLine> Engine::plan(const PassLimits& limits) const {
  std::vector<PlanLine> lines = roles_.parameters->plan(table_, placement_);
  const auto add = [&](std::vector<PlanLine> more) {
    for (PlanLine& line : more) lines.push_back(std::move(line));
  };
  add(Pass::plan(parts(), limits));
  add(RouterBalancing::plan(context_.job.model(), table_, limits.microbatches));
  return lines;
}

std::vector<CollectiveUse> Engine::exchanges(const PassLimits& limits) const {
  std::vector<CollectiveUse> uses = roles_.parameters->exchanges(table_, placement_);
  const auto add = [&](std::vector<CollectiveUse> more) {
    for (CollectiveUse& use : more) uses.push_back(std::move(use));
  };
  if (context_.mesh.expert > 1) add(roles_.experts->exchanges(Pass::expert_sizes(parts(), limits)));
  add(RouterBalancing::exchanges(context_.job.model(), table_));
  return uses;
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

void Engine::make_communicators() {
  const MeshShape& mesh = context_.mesh;
  const auto make = [&](const char* name, const std::vector<int>& ranks) {
    return roles_.backend->make_communicator(name, ranks, rendezvous_);
  };
  std::vector<int> everyone;
  for (int rank = 0; rank < mesh.ranks(); ++rank) everyone.push_back(rank);
  world_ = make("world", everyone);
  shard_ = make("shard", shard_group(mesh, context_.rank));
  replicate_ = make("replicate", replicate_group(mesh, context_.rank));
  if (mesh.expert > 1) own_expert_shard_ = make("expert_shard", expert_shard_group(mesh, context_.rank));
  expert_ = make("expert", expert_group(mesh, context_.rank));
  nodes_ = rendezvous_.exchange("node", {}, context_.node);
  node_ = make("node", node_group(mesh, context_.rank, nodes_));
}

void Engine::start(const PassLimits& limits) {
  compare_across_ranks();
  started_ = true;
  make_communicators();
  const StartContext context{
      *roles_.backend, table_,  placement_, at_, *shard_, *replicate_, own_expert_shard_ ? *own_expert_shard_ : *shard_,
      *expert_,        *world_, *node_};
  roles_.parameters->start(context);
  roles_.experts->start({context, Pass::expert_sizes(parts(), limits),
                         static_cast<int>(context_.job.model().num_hidden_layers()), limits.microbatches_per_gather});
  routers_ =
      std::make_unique<RouterBalancing>(context_.job.model(), table_, *roles_.backend, *world_, limits.microbatches);
  pass_ = std::make_unique<Pass>(parts(), limits, *routers_);
}

}  // namespace ananke
