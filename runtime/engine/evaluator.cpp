#include "runtime/engine/evaluator.h"

#include <chrono>
#include <numbers>

namespace ananke {

Evaluator::Evaluator(Engine& engine, BatchLoader& loader, std::vector<HeldOutBatches> sets,
                     std::int64_t rows_per_microbatch)
    : engine_(engine),
      loader_(loader),
      rows_per_pass_(rows_per_microbatch * engine.context().mesh.ranks()),
      schedule_(evaluation_schedule(engine.table())),
      scalars_(engine.backend(), engine.world()) {
  for (HeldOutBatches& set : sets) {
    std::string begin = set.batches->position();
    sets_.push_back({std::move(set), std::move(begin)});
  }
}

std::optional<std::vector<Evaluator::Outcome>> Evaluator::run(const std::function<bool()>& stop_requested) {
  std::vector<Outcome> outcomes;
  for (Set& set : sets_) {
    std::optional<Outcome> outcome = evaluate(set, stop_requested);
    if (!outcome) return std::nullopt;
    outcomes.push_back(std::move(*outcome));
  }
  return outcomes;
}

std::optional<Evaluator::Outcome> Evaluator::evaluate(Set& set, const std::function<bool()>& stop_requested) {
  const auto begin = std::chrono::steady_clock::now();
  SequentialBatches& batches = *set.held_out.batches;
  batches.restore(set.begin);
  Outcome outcome;
  outcome.held_out = set.held_out.name;
  double loss_sum = 0;
  Rows rows;
  // Every rank gets the same answers from next(), so all make the same number of passes, some with no rows.
  while (batches.next(rows_per_pass_, rows)) {
    scalars_.begin(rows.valid_targets, stop_requested());
    const std::vector<DeviceBatch>& microbatches = loader_.load(engine_.compute(), rows);
    engine_.pass().run(schedule_, {microbatches.data(), 1}, {scalars_.loss(), {}, {}, false, {}});
    scalars_.agree(0);
    const StepScalars::Outcome part = scalars_.read();
    if (part.stop) return std::nullopt;
    loss_sum += part.loss_sum;
    outcome.valid_targets += part.valid_targets;
  }
  if (outcome.valid_targets) outcome.loss = loss_sum / static_cast<double>(outcome.valid_targets);
  const std::uint64_t bytes = batches.source().text_bytes();
  if (bytes > 0 && static_cast<std::uint64_t>(outcome.valid_targets) == batches.targets()) {
    outcome.bits_per_byte = loss_sum / std::numbers::ln2 / static_cast<double>(bytes);
  }
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return outcome;
}

}  // namespace ananke
