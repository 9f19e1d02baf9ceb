#include "runtime/engine/routing_tape.h"

#include "ananke/job.pb.h"
#include "runtime/base/error.h"

namespace ananke {

namespace {

bool wanted(const Job& job) {
  return !job.training().record_routing().empty() || !job.training().replay_routing().empty();
}

}  // namespace

std::vector<PlanLine> RoutingTape::plan(const Job& job) {
  if (!wanted(job)) return {};
  const std::uint64_t row = std::uint64_t{job.training().sequence_length()} * job.model().num_experts_per_tok();
  return {{"routing log", Place::host, row * sizeof(std::int32_t)}};
}

RoutingTape::RoutingTape(const Job& job, Engine& engine)
    : engine_(engine),
      row_length_(job.training().sequence_length()),
      rows_per_microbatch_(job.training().rows_per_microbatch()),
      k_(job.model().num_experts_per_tok()) {
  const Training& training = job.training();
  if (!wanted(job)) return;
  std::uint64_t layers = 0;
  for (const Block& block : engine.table().blocks()) layers += block.moe;
  const RoutingShape shape{training.steps(), training.rows_per_step(), layers, static_cast<std::uint64_t>(row_length_),
                           static_cast<std::uint64_t>(k_)};
  if (!training.record_routing().empty()) {
    const int ranks = engine.context().mesh.ranks();
    if (ranks != 1) {
      fail(ErrorKind::config, "training.record_routing {} works on one rank, this job has {}; record with --ranks 1",
           training.record_routing(), ranks);
    }
    recorded_.emplace(RoutingLog::create(training.record_routing(), shape));
  } else {
    replayed_.emplace(RoutingLog::open(training.replay_routing(), shape));
  }
  staging_ = engine.device().host_memory().allocate(static_cast<std::size_t>(row_length_ * k_) * sizeof(std::int32_t),
                                                    "routing log");
}

template <class Visit>
void RoutingTape::for_each_row(const std::vector<DeviceBatch>& batches, Visit visit) {
  const RoleContext& context = engine_.context();
  std::uint64_t moe_layer = 0;
  for (const Block& block : engine_.table().blocks()) {
    if (!block.moe) continue;
    for (std::size_t m = 0; m < batches.size(); ++m) {
      const TensorView all = engine_.pass().routing(block.layer, static_cast<int>(m), batches[m].tokens);
      for (std::int64_t row = 0; row * row_length_ < batches[m].tokens; ++row) {
        const std::int64_t local = static_cast<std::int64_t>(m) * rows_per_microbatch_ + row;
        const std::int64_t global = local * context.mesh.ranks() + context.rank;
        visit(moe_layer, static_cast<std::uint64_t>(global), all.slice(row * row_length_ * k_, row_length_ * k_));
      }
    }
    ++moe_layer;
  }
}

void RoutingTape::before_step(std::uint64_t step, const std::vector<DeviceBatch>& batches) {
  if (!replayed_) return;
  auto* staging = staging_.view(DType::i32, {row_length_, k_}).as<std::int32_t>();
  for_each_row(batches, [&](std::uint64_t layer, std::uint64_t row, const TensorView& indices) {
    replayed_->read(step, row, layer, staging);
    engine_.device().copy(engine_.compute(), indices.data, staging, indices.bytes());
    engine_.compute().synchronize();
  });
}

void RoutingTape::after_step(std::uint64_t step, const std::vector<DeviceBatch>& batches) {
  if (!recorded_) return;
  auto* staging = staging_.view(DType::i32, {row_length_, k_}).as<std::int32_t>();
  for_each_row(batches, [&](std::uint64_t layer, std::uint64_t row, const TensorView& indices) {
    engine_.device().read(indices, staging);
    recorded_->write(step, row, layer, staging);
  });
}

}  // namespace ananke
