// Mean loss on held-out sets. Changes nothing of the training state.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "runtime/data/sequential_batches.h"
#include "runtime/engine/batch_loader.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/step_scalars.h"

namespace ananke {

class Evaluator {
 public:
  // The sets are read from where they stand now, each time.
  Evaluator(Engine& engine, BatchLoader& loader, std::vector<HeldOutBatches> sets, std::int64_t rows_per_microbatch);

  struct Outcome {
    std::string held_out;  // the set's name
    double loss = 0;       // nats per valid target
    std::int64_t valid_targets = 0;
    double seconds = 0;
    std::optional<double> bits_per_byte;  // where the text's bytes are known and all of the set was evaluated
  };
  // One outcome for each set, in their order. Nothing: some rank was asked to stop. `stop_requested` is asked before
  // every pass; the ranks agree on the answer, so that all end after the same one.
  std::optional<std::vector<Outcome>> run(const std::function<bool()>& stop_requested);

 private:
  struct Set {
    HeldOutBatches held_out;
    std::string begin;
  };
  std::optional<Outcome> evaluate(Set& set, const std::function<bool()>& stop_requested);

  Engine& engine_;
  BatchLoader& loader_;
  std::vector<Set> sets_;
  std::int64_t rows_per_pass_;
  Schedule schedule_;
  StepScalars scalars_;
};

}  // namespace ananke
