// Between the device and checkpoints: weights and optimizer state of what this rank owns, and the routers' biases,
// which every rank holds and rank 0 writes. In a checkpoint all are f32: what is stored in bf16 (training.weights) is
// exact there and back; f32 is rounded where it is loaded into bf16.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/engine/engine.h"

namespace ananke {

class StateCheckpoint {
 public:
  // Collective, as Checkpoints is. All arguments outlive it; the optimizer's states are in place.
  StateCheckpoint(Engine& engine, const OptimizerStep& optimizer, Checkpoints& checkpoints);

  // `places`: by unit; what is on the host is written from there.
  static std::vector<PlanLine> plan(const ParameterTable& table, std::span<const Fragment> fragments,
                                    std::span<const Place> places);

  void save(const TrainingProgress& progress, int keep_last);
  // Fills weights and states on every rank, all replicas. Nothing when there is no checkpoint yet.
  std::optional<LoadedState> load(const ResumeCheck& check);

 private:
  struct Tensor {
    const Parameter* parameter;
    std::int64_t begin, count;
    std::string state;
    TensorView values;
    Place place = Place::device;
  };
  template <class Piece>
  std::vector<Piece> pieces(std::size_t count);
  void fetch(const Tensor& tensor, std::int64_t first, std::span<float> into);
  void put(const Tensor& tensor, std::int64_t first, std::span<const float> from);

  Engine& engine_;
  Checkpoints& checkpoints_;
  Buffer staging_;  // for one piece of a tensor: pinned memory is scarce
  std::vector<Tensor> tensors_;
  std::size_t owned_ = 0;  // tensors_ from here on are held by every rank
};

}  // namespace ananke
