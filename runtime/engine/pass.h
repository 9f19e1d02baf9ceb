// Runs a schedule: gathers, blocks forward and backward, reductions. Training steps, evaluation and parity are passes.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/engine/router_balancing.h"
#include "runtime/model/decoder.h"
#include "runtime/model/schedule.h"
#include "runtime/roles/activations.h"
#include "runtime/roles/parameters.h"

namespace ananke {

class Model;

struct PassLimits {
  std::int64_t tokens = 0;   // of one microbatch, at most
  std::int64_t longest = 0;  // segment, at most
  int microbatches = 1;
  int microbatches_per_gather = 1;  // so many are in flight at once; divides microbatches
  Recompute recompute = {};
  std::int64_t positions = 0;   // entries of the RoPE cache
  bool forced_balance = false;  // routers decide nothing (operators/router.h)
};

// What every pass is built of; all outlive it.
struct PassParts {
  const Model& model;
  const ParameterTable& table;
  const Placement& placement;
  MeshCoordinates at;  // of this rank
  DType compute;       // of activations
  Backend& backend;
  Parameters& parameters;
  Activations& activations;
  Experts& experts;
};

class Pass {
 public:
  // Allocates everything; run() allocates nothing. `routers` outlives the pass.
  Pass(const PassParts& parts, const PassLimits& limits, RouterBalancing& routers);
  static std::vector<PlanLine> plan(const PassParts& parts, const PassLimits& limits);
  // What the experts role is started with, besides backend and communicator.
  static ExpertSizes expert_sizes(const PassParts& parts, const PassLimits& limits);

  struct Result {
    TensorView loss;                     // f64 [1], added to: the sum over targets
    TensorView scale;                    // f32 [1]: what the gradients are of: scale x loss
    std::span<const TensorView> logits;  // per microbatch, or empty
    bool replay_routing = false;         // routing(...) holds the decisions
    // f64 [2], added to by a schedule with gradients: this rank's part of what the routers add to scale x loss,
    // {auxiliary loss, z-loss}. Empty: nobody asks; their gradients are made all the same.
    TensorView router_losses = {};
    // For work of the caller's that runs under the pass's: called once each, when the first gathers are on their way,
    // and before the first item that makes gradients, when `scale` must be on the compute stream. May be empty.
    std::function<void()> gathers_begun = {}, gradients_begin = {};
  };
  void run(const Schedule& schedule, std::span<const DeviceBatch> batches, const Result& result);
  // Told of every item when it begins, on run()'s thread. May be empty.
  void watch(std::function<void(const ItemPlace&)> watch) { watch_ = std::move(watch); }

  // i32 [T, k] of a MoE layer; valid after run() on the compute stream, or to be filled before a replay.
  TensorView routing(int layer, int microbatch, std::int64_t tokens) const;

 private:
  struct Memory;
  TensorView activation(void* data, const DeviceBatch& batch) const;
  Region kept(int block, int slot) const;
  void acquire(int number, const Item& item, std::span<UnitViews> views, BlockIo& io);
  void give_back(int number, const Item& item, const UnitUse& use);
  void run_item(const Schedule& schedule, std::size_t index, std::span<const DeviceBatch> batches,
                const Result& result);
  void forward(const Item& item, BlockIo& io, const HeadOutput& head);
  void both(const Item& item, BlockIo& io, const HeadOutput& head);
  void backward(const Item& item, BlockIo& io);
  RoutingDecision routing_decision(const Block& block, const Item& item, const Result& result, std::int64_t tokens);

  PassParts parts_;
  PassLimits limits_;
  RouterBalancing& routers_;
  std::int64_t hidden_, k_;
  int slots_;            // microbatches in flight at once
  int last_moe_ = -1;    // block
  bool trains_ = false;  // the schedule under way has gradients
  Stream& compute_;
  std::function<void(const ItemPlace&)> watch_;
  Buffer rope_, kept_, made_again_, workspace_, gradients_, routing_;
  std::vector<std::size_t> kept_offset_;  // per block, of slot 0
  std::vector<std::size_t> kept_bytes_;
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace ananke
