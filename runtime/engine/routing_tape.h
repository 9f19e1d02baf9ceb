// Records or replays the routing decisions of a training run (job.training.record_routing, replay_routing).
#pragma once

#include <optional>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/engine/routing_log.h"

namespace ananke {

class RoutingTape {
 public:
  // Throws Error(config) when recording on more than one rank: rows of a step must all pass here.
  RoutingTape(const Job& job, Engine& engine);
  static std::vector<PlanLine> plan(const Job& job);
  bool replays() const { return replayed_.has_value(); }
  void before_step(std::uint64_t step, const std::vector<DeviceBatch>& batches);  // fills the pass's decisions
  void after_step(std::uint64_t step, const std::vector<DeviceBatch>& batches);   // reads them back

 private:
  // visit(layer among the MoE layers, global row, i32 [row_length, k] of the pass)
  template <class Visit>
  void for_each_row(const std::vector<DeviceBatch>& batches, Visit visit);
  Engine& engine_;
  std::int64_t row_length_, rows_per_microbatch_, k_;
  Buffer staging_;
  std::optional<RoutingLog> recorded_, replayed_;
};

}  // namespace ananke
