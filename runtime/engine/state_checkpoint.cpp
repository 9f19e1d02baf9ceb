#include "runtime/engine/state_checkpoint.h"

#include <algorithm>
#include <type_traits>

#include "runtime/engine/stored_values.h"

namespace ananke {
namespace {

// For a piece of a tensor of so many elements.
std::size_t staging_bytes(std::int64_t elements) {
  return static_cast<std::size_t>(std::min(elements, StateFragment::at_once)) * sizeof(float);
}

}  // namespace

StateCheckpoint::StateCheckpoint(Engine& engine, const OptimizerStep& optimizer, Checkpoints& checkpoints)
    : engine_(engine), checkpoints_(checkpoints) {
  const auto add = [&](const OwnedFragment& fragment, std::string state, const TensorView& values) {
    const Fragment& where = fragment.where;
    const Parameter& parameter = engine.table().parameters()[static_cast<std::size_t>(where.parameter)];
    tensors_.push_back({&parameter, where.begin, where.count, std::move(state), values, fragment.place});
  };
  for (const OwnedFragment& fragment : engine.parameters().fragments()) add(fragment, "weight", fragment.weight);
  for (const OptimizerStep::State& state : optimizer.states()) add(*state.fragment, state.name, state.values);
  owned_ = tensors_.size();
  for (const Parameter& bias : engine.table().buffers()) {
    tensors_.push_back({&bias, 0, bias.shape.elements(), "weight", engine.routers().bias(bias.layer)});
  }
  std::int64_t largest = 0;
  for (const Tensor& tensor : tensors_) {
    if (tensor.place == Place::device) largest = std::max(largest, tensor.count);
  }
  staging_ = engine.device().host_memory().allocate(staging_bytes(largest), "checkpoint staging");
}

std::vector<PlanLine> StateCheckpoint::plan(const ParameterTable& table, std::span<const Fragment> fragments,
                                            std::span<const Place> places) {
  std::int64_t largest = 0;
  for (const Fragment& fragment : fragments) {
    if (places[static_cast<std::size_t>(fragment.unit)] == Place::device) largest = std::max(largest, fragment.count);
  }
  for (const Parameter& bias : table.buffers()) largest = std::max(largest, bias.shape.elements());
  return {{"checkpoint staging", Place::host, staging_bytes(largest)}};
}

void StateCheckpoint::fetch(const Tensor& tensor, std::int64_t first, std::span<float> into) {
  Stream& compute = engine_.compute();
  const TensorView piece = tensor.values.slice(first, static_cast<std::int64_t>(into.size()));
  engine_.device().copy(compute, staging_.data(), piece.data, piece.bytes());
  compute.synchronize();
  widen(staging_.data(), piece.dtype, into);
}

void StateCheckpoint::put(const Tensor& tensor, std::int64_t first, std::span<const float> from) {
  Stream& compute = engine_.compute();
  const TensorView piece = tensor.values.slice(first, static_cast<std::int64_t>(from.size()));
  narrow(from, piece.dtype, staging_.data());
  engine_.device().copy(compute, piece.data, staging_.data(), piece.bytes());
  compute.synchronize();
}

// Of the first `count` tensors. Those on the host are read and written where they are: no stream has work on them.
template <class Piece>
std::vector<Piece> StateCheckpoint::pieces(std::size_t count) {
  std::vector<Piece> pieces;
  engine_.compute().synchronize();
  for (std::size_t i = 0; i < count; ++i) {
    const Tensor& tensor = tensors_[i];
    const auto move = [this, &tensor](std::int64_t first, std::span<typename Piece::Number> numbers) {
      if constexpr (std::is_same_v<Piece, StateFragment>) {
        fetch(tensor, first, numbers);
      } else {
        put(tensor, first, numbers);
      }
    };
    const bool here = tensor.place == Place::host;
    pieces.push_back({tensor.parameter->name, tensor.state, tensor.parameter->shape, tensor.begin, tensor.count,
                      here ? tensor.values.as<float>() : nullptr, move});
  }
  return pieces;
}

void StateCheckpoint::save(const TrainingProgress& progress, int keep_last) {
  std::vector<StateFragment> fragments;
  if (engine_.first_replica()) {
    fragments = pieces<StateFragment>(engine_.context().rank == 0 ? tensors_.size() : owned_);
  }
  checkpoints_.save(progress, engine_.context().job, fragments, keep_last);
}

std::optional<LoadedState> StateCheckpoint::load(const ResumeCheck& check) {
  std::optional<LoadedState> loaded = checkpoints_.load_newest(pieces<StateTarget>(tensors_.size()), check);
  if (loaded) engine_.parameters().updated();
  return loaded;
}

}  // namespace ananke
