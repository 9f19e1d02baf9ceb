#include "runtime/engine/evaluator.h"

#include <algorithm>
#include <limits>

namespace ananke {

Evaluator::Evaluator(Engine& engine, BatchLoader& loader, std::unique_ptr<Batches> held_out, std::int64_t rows,
                     std::int64_t rows_per_microbatch)
    : engine_(engine),
      loader_(loader),
      held_out_(std::move(held_out)),
      begin_(held_out_->position()),
      rows_(rows > 0 ? rows : std::numeric_limits<std::int64_t>::max()),
      rows_per_pass_(rows_per_microbatch * engine.context().mesh.ranks()),
      schedule_(evaluation_schedule(engine.table())),
      scalars_(engine.backend(), engine.world()) {}

Evaluator::Outcome Evaluator::run(const std::function<bool()>& stop_requested) {
  held_out_->restore(begin_);
  double loss_sum = 0;
  Outcome outcome;
  Rows rows;
  // Every rank gets the same answers from next(), so all make the same number of passes, some with no rows.
  for (std::int64_t left = rows_; !outcome.stopped && left > 0 && held_out_->next(std::min(left, rows_per_pass_), rows);
       left -= rows_per_pass_) {
    scalars_.begin(rows.valid_targets, stop_requested());
    const std::vector<DeviceBatch>& batches = loader_.load(engine_.compute(), rows);
    engine_.pass().run(schedule_, {batches.data(), 1}, {scalars_.loss(), {}, {}, false});
    scalars_.agree(0);
    const StepScalars::Outcome part = scalars_.read();
    loss_sum += part.loss_sum;
    outcome.valid_targets += part.valid_targets;
    outcome.stopped = part.stop;
  }
  if (outcome.valid_targets) outcome.loss = loss_sum / static_cast<double>(outcome.valid_targets);
  return outcome;
}

}  // namespace ananke
