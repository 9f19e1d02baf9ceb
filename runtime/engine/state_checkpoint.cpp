#include "runtime/engine/state_checkpoint.h"

namespace ananke {

StateCheckpoint::StateCheckpoint(Engine& engine, const OptimizerStep& optimizer, Checkpoints& checkpoints)
    : engine_(engine), checkpoints_(checkpoints) {
  const auto add = [&](const Fragment& where, std::string state, const TensorView& values) {
    const Parameter& parameter = engine.table().parameters()[static_cast<std::size_t>(where.parameter)];
    tensors_.push_back({&parameter, where.begin, where.count, std::move(state), values, {}});
  };
  for (const OwnedFragment& fragment : engine.parameters().fragments()) add(fragment.where, "weight", fragment.weight);
  for (const OptimizerStep::State& state : optimizer.states()) add(state.fragment->where, state.name, state.values);
  owned_ = tensors_.size();
  for (const Parameter& bias : engine.table().buffers()) {
    tensors_.push_back({&bias, 0, bias.shape.elements(), "weight", engine.routers().bias(bias.layer), {}});
  }
  std::size_t bytes = 0;
  for (const Tensor& tensor : tensors_) bytes += tensor.on_device.bytes();
  staging_ = engine.device().host_memory().allocate(bytes, "checkpoint staging");
  std::size_t at = 0;
  for (Tensor& tensor : tensors_) {
    tensor.on_host = staging_.view(DType::f32, {tensor.on_device.elements()}, at);
    at += tensor.on_device.bytes();
  }
}

std::vector<PlanLine> StateCheckpoint::plan(const ParameterTable& table, const std::vector<std::string>& chosen,
                                            const OptimizerMap& optimizers, std::span<const Fragment> fragments) {
  std::uint64_t bytes = 0;
  for (const Fragment& fragment : fragments) {
    const auto index = static_cast<std::size_t>(fragment.parameter);
    const std::size_t states = optimizers.at(chosen[index])->states(table.parameters()[index]).size();
    bytes += static_cast<std::uint64_t>(fragment.count) * sizeof(float) * (1 + states);
  }
  for (const Parameter& bias : table.buffers()) {
    bytes += static_cast<std::uint64_t>(bias.shape.elements()) * sizeof(float);
  }
  return {{"checkpoint staging", Place::host, bytes}};
}

// Of the first `count` tensors.
template <class Piece>
std::vector<Piece> StateCheckpoint::pieces(std::size_t count) const {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < count; ++i) {
    const Tensor& tensor = tensors_[i];
    pieces.push_back({tensor.parameter->name, tensor.state, tensor.parameter->shape, tensor.begin, tensor.count,
                      tensor.on_host.as<float>()});
  }
  return pieces;
}

void StateCheckpoint::save(const TrainingProgress& progress, int keep_last) {
  Stream& compute = engine_.compute();
  std::vector<StateFragment> fragments;
  if (engine_.first_replica()) {
    for (const Tensor& tensor : tensors_) {
      engine_.device().copy(compute, tensor.on_host.data, tensor.on_device.data, tensor.on_device.bytes());
    }
    compute.synchronize();
    fragments = pieces<StateFragment>(engine_.context().rank == 0 ? tensors_.size() : owned_);
  }
  checkpoints_.save(progress, engine_.context().job, fragments, keep_last);
}

std::optional<LoadedState> StateCheckpoint::load(const ResumeCheck& check) {
  std::optional<LoadedState> loaded = checkpoints_.load_newest(pieces<StateTarget>(tensors_.size()), check);
  if (!loaded) return loaded;
  Stream& compute = engine_.compute();
  for (const Tensor& tensor : tensors_) {
    engine_.device().copy(compute, tensor.on_device.data, tensor.on_host.data, tensor.on_device.bytes());
  }
  compute.synchronize();
  engine_.parameters().updated();
  return loaded;
}

}  // namespace ananke
