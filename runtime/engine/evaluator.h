// Mean loss on held-out rows. Changes nothing of the training state.
#pragma once

#include <functional>

#include "runtime/engine/batch_loader.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/step_scalars.h"
#include "runtime/roles/batches.h"

namespace ananke {

class Evaluator {
 public:
  // `held_out` is read from where it stands now, each time. `rows`: at most so many global rows; 0: all.
  Evaluator(Engine& engine, BatchLoader& loader, std::unique_ptr<Batches> held_out, std::int64_t rows,
            std::int64_t rows_per_microbatch);

  struct Outcome {
    double loss = 0;  // nats per valid target
    std::int64_t valid_targets = 0;
    bool stopped = false;  // some rank was asked to stop: not all rows were evaluated
  };
  // `stop_requested` is asked before every pass; the ranks agree on the answer, so that all end after the same one.
  Outcome run(const std::function<bool()>& stop_requested);

 private:
  Engine& engine_;
  BatchLoader& loader_;
  std::unique_ptr<Batches> held_out_;
  std::string begin_;
  std::int64_t rows_, rows_per_pass_;
  Schedule schedule_;
  StepScalars scalars_;
};

}  // namespace ananke
