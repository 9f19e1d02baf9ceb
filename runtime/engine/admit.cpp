#include "runtime/engine/admit.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "ananke/site.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/process.h"
#include "runtime/base/units.h"
#include "runtime/engine/memory_report.h"
#include "runtime/engine/trainer.h"
#include "runtime/memory/admission.h"
#include "runtime/memory/cgroup.h"
#include "runtime/memory/node_reader.h"

namespace ananke {
namespace {

std::uint64_t bytes_or_none(const std::string& text) { return text.empty() ? 0 : parse_bytes(text); }

}  // namespace

JobMemory::Admission admission_of(const Job& job, const Site& site) {
  return job.memory().has_admission() ? job.memory().admission() : site.memory().admission();
}

RoomOptions room_options(const Site& site) {
  return {.node_bytes = bytes_or_none(site.memory().node_bytes()), .reserve = bytes_or_none(site.memory().reserve())};
}

RankNeed need_of(Trainer& trainer, const RoleContext& context, const Site& site) {
  Backend& backend = trainer.engine().backend();
  const MemoryReport plan = memory_report(context.rank, context.mesh.ranks(), whole_plan(trainer));
  const std::filesystem::path root = site.memory().root();
  RankNeed need;
  need.set_rank(static_cast<std::uint32_t>(context.rank));
  need.set_node(context.node);
  // What this process has already is missing from what its node has free.
  const std::uint64_t planned = plan.host_planned() + (backend.computes_on_host() ? plan.device_planned() : 0);
  need.set_host_bytes(planned - std::min(planned, anonymous_memory()));
  NodeMemory node = read_node_memory(root, context.node);
  for (const std::uint32_t id : read_own_numa_nodes(root, node)) need.add_numa(id);
  if (need.numa().empty()) log_warning("this process may use no memory of a NUMA node that has CPUs");
  CgroupReading groups = read_cgroup_limits(root);
  for (CgroupLimit& limit : groups.limits) *need.add_cgroup() = std::move(limit);
  for (const std::string& sentence : groups.trouble) log_warning("{}", sentence);
  for (const std::string& sentence : node.trouble()) log_warning("{}", sentence);
  if (context.local_rank <= 0) {
    add_memory_holders(root, node);
    *need.mutable_memory() = std::move(node);
  }
  if (backend.computes_on_host()) return need;
  if (const std::optional<DeviceRoom> room = backend.room()) {
    need.set_device_bytes(plan.device_planned() - std::min(plan.device_planned(), room->taken));
    need.set_device_free(room->free);
    need.set_device(room->name);
  }
  return need;
}

struct Admitter::Outcome {
  std::vector<RankNeed> needs;
  AdmissionVerdict verdict;
};

Admitter::Admitter(Job& job, const RoleContext& context, const Site& site, Rendezvous& rendezvous, RunControl& control,
                   std::function<std::unique_ptr<Trainer>()> make)
    : job_(job), context_(context), site_(site), rendezvous_(rendezvous), control_(control), make_(std::move(make)) {}

void Admitter::say(const std::string& line) const {
  if (context_.rank == 0) control_.console(line);
  log_info("{}", line);
}

// Of the trainer as it is.
Admitter::Outcome Admitter::judge() {
  const std::string mine = need_of(*trainer_, context_, site_).SerializeAsString();
  Outcome outcome;
  for (const std::string& text : rendezvous_.exchange(fmt::format("memory {}", ++judged_), {}, mine)) {
    if (!outcome.needs.emplace_back().ParseFromString(text)) {
      fail(ErrorKind::internal, "rank {} sends no record of its memory", outcome.needs.size() - 1);
    }
  }
  outcome.verdict = judge_admission(outcome.needs, room_options(site_));
  return outcome;
}

std::unique_ptr<Trainer> Admitter::admit() {
  const JobMemory::Admission policy = admission_of(job_, site_);
  trainer_ = make_();
  const Outcome outcome = judge();
  for (const std::string& warning : outcome.verdict.warnings) say("warning: " + warning);
  if (outcome.verdict.fits()) return std::move(trainer_);
  if (policy == JobMemory::OFF) {
    say("warning: memory.admission is OFF, and the job goes on although " +
        std::string(outcome.verdict.shortages.empty() ? "nobody can say whether it fits into memory:"
                                                      : "it does not fit into memory:") +
        refusal_text(outcome.verdict, outcome.needs, room_options(site_)));
    return std::move(trainer_);
  }
  const double fraction = trainer_->engine().activations().offload_fraction();
  const bool known = outcome.verdict.unknown.empty();  // else nobody can say what would fit
  // Nodes that are too small were left out before the start, as far as there were spare ones.
  if (policy == JobMemory::USE_SPARES)
    refuse(outcome, "and no spare node could take the place of one that is too small; ");
  if (policy == JobMemory::REFUSE || outcome.verdict.host_fits() || !known) refuse(outcome, "");
  if (fraction == 0) refuse(outcome, "memory.admission is REDUCE_OFFLOAD, but no activations are kept on the host; ");
  return offload_less(fraction);
}

std::unique_ptr<Trainer> Admitter::offload_less(double configured) {
  const int layers = static_cast<int>(job_.model().num_hidden_layers());
  Outcome last;
  const auto fits = [&](double fraction) {
    trainer_.reset();  // it refers to the job
    job_.mutable_resolved()->set_offload_fraction(fraction);
    trainer_ = make_();
    last = judge();
    return last.verdict.host_fits();
  };
  const std::optional<double> found = largest_fraction(configured, layers, fits);
  if (!found) refuse(last, "even with no activations kept on the host; ");
  fits(*found);
  if (*found == configured && last.verdict.fits()) return std::move(trainer_);  // memory came free meanwhile
  const std::string text =
      fmt::format("{:.3g} instead of {:.3g} of the layers' inputs are kept on the host", *found, configured);
  if (!last.verdict.fits()) refuse(last, text + ", as much as the host takes; ");
  const bool rounds = trainer_->engine().activations().rounds();
  say("memory.admission is REDUCE_OFFLOAD: " + text +
      (rounds ? "; they are rounded on their way there, so that results are not the bits of a run with another "
                "fraction, nor of this one if it goes on where memory is different"
              : ""));
  return std::move(trainer_);
}

void Admitter::refuse(const Outcome& outcome, const std::string& remark) const {
  const std::string text = refusal_text(outcome.verdict, outcome.needs, room_options(site_));
  if (outcome.verdict.shortages.empty()) {
    fail(ErrorKind::resource,
         "nobody can say whether the job fits into the memory of its nodes; nothing was allocated. What is read lies "
         "below {} (the site's memory.root). `--admission off` goes on anyway.{}",
         site_.memory().root(), text);
  }
  fail(ErrorKind::resource,
       "the job does not fit into the memory of its nodes; {}nothing was allocated. What it needs: --print-memory; "
       "with less: more ranks on the shard axis, smaller microbatches, recompute. `--admission off` goes on "
       "anyway.{}",
       remark, text);
}

}  // namespace ananke
