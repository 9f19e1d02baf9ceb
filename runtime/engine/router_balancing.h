// What keeps the routers' load even, for all MoE layers of a rank together: their biases, the statistics of a step, the
// losses made of them, and what the step record says. Every rank holds all of it; what is summed over ranks is summed
// on the device, so that results do not depend on the mesh.
//
//   begin ─ per microbatch: (all forwards) forwards_done ─ factors ─ (backwards) ─ ... ─ update
//
// Evaluation only takes biases. All calls come from the host thread that issues collectives; none waits for the device.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/model/decoder.h"
#include "runtime/roles/backend.h"

namespace ananke {

class Model;

class RouterBalancing {
 public:
  // At most `microbatches` in a step. All arguments outlive it. Biases are 0.
  RouterBalancing(const Model& model, const ParameterTable& table, Backend& backend, Communicator& world,
                  int microbatches);
  static std::vector<PlanLine> plan(const Model& model, const ParameterTable& table, int microbatches);
  static std::vector<CollectiveUse> exchanges(const Model& model, const ParameterTable& table);

  // Of a MoE layer: f32 [E], what its router chooses by besides its scores; empty where the model has none.
  TensorView bias(int layer) const;
  // All biases: f32 [MoE layers, E], in the order of ParameterTable::buffers(); empty where the model has none.
  TensorView biases() const { return biases_; }

  // A step with these microbatches begins. `scale`: f32 [1], 1 / valid targets of the step. `losses`: f64 [2], added
  // to: this rank's part of {auxiliary loss, z-loss}, coefficients included; may be empty.
  void begin(std::span<const DeviceBatch> batches, const TensorView& scale, const TensorView& losses);
  // Where a layer's router writes its statistics, f64 [2E + 2].
  TensorView statistics(int layer, int microbatch) const;
  // All layers' forwards of the microbatch are on the compute stream: starts one all-reduce where a loss needs it, and
  // with the last microbatch the one that sums the step's load over all ranks: both run under what is computed next.
  void forwards_done(int microbatch);
  // For the routers' backwards of the microbatch, on the compute stream; empty where there is no such loss.
  TensorView factors(int microbatch);

  // f64 values that update() writes for the step record.
  std::int64_t summary_size() const;
  static std::int64_t summary_size(const ParameterTable& table);
  // After all forwards: moves the biases where finite[0] (i32 [1]) says so, then writes `summary`, f64
  // [summary_size()].
  void update(const TensorView& finite, const TensorView& summary);

  struct LayerLoad {
    int layer;
    double smallest, largest, mean;    // tokens per expert
    double entropy;                    // mean over tokens, nats
    double bias_lowest, bias_highest;  // 0 without biases
    double dropped;                    // choices that no expert counted
  };
  // A summary that the host has read.
  std::vector<LayerLoad> describe(std::span<const double> summary) const;

  bool biased() const { return static_cast<bool>(biases_); }
  bool has_auxiliary_loss() const { return auxiliary_coefficient_ > 0; }
  bool has_z_loss() const { return z_coefficient_ > 0; }

 private:
  struct Layout;
  std::int64_t row_of(int layer) const;  // among MoE layers
  void sum_totals(int microbatch);
  void sum_load();
  bool has_losses() const { return has_auxiliary_loss() || has_z_loss(); }

  Backend& backend_;
  Communicator& world_;
  std::vector<int> layers_;  // MoE, ascending
  std::int64_t experts_, k_, microbatches_;
  double auxiliary_coefficient_, z_coefficient_;
  Buffer memory_, host_;
  TensorView biases_, rates_;                 // [L, E], [L]
  TensorView statistics_, totals_, factors_;  // f64 [M, L, 2E + 2], f64 [M, E + 2], f32 [M, E + 1]
  TensorView load_;                           // f64 [L (E + 1) + 1]: of every layer, then tokens of the step
  TensorView own_losses_;                     // f64 [2], where nobody asks
  std::unique_ptr<Event> before_, loaded_;
  std::vector<std::unique_ptr<Event>> reduced_;  // per microbatch

  // Of the step under way.
  struct Microbatch {
    std::int64_t tokens = 0, targets = 0;
    bool ready = false;  // factors are on the compute stream
  };
  std::vector<Microbatch> current_;
  TensorView scale_, losses_;
};

}  // namespace ananke
