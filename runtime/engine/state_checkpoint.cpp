#include "runtime/engine/state_checkpoint.h"

namespace ananke {

StateCheckpoint::StateCheckpoint(Engine& engine, const OptimizerStep& optimizer, Checkpoints& checkpoints)
    : engine_(engine), checkpoints_(checkpoints) {
  for (const OwnedFragment& fragment : engine.parameters().fragments()) {
    tensors_.push_back({&fragment, "weight", fragment.weight, {}});
  }
  for (const OptimizerStep::State& state : optimizer.states()) {
    tensors_.push_back({state.fragment, state.name, state.values, {}});
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
  return {{"checkpoint staging", Place::host, bytes}};
}

template <class Piece>
std::vector<Piece> StateCheckpoint::pieces() const {
  std::vector<Piece> pieces;
  for (const Tensor& tensor : tensors_) {
    const Fragment& where = tensor.fragment->where;
    const Parameter& parameter = engine_.table().parameters()[static_cast<std::size_t>(where.parameter)];
    pieces.push_back(
        {parameter.name, tensor.state, parameter.shape, where.begin, where.count, tensor.on_host.as<float>()});
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
    fragments = pieces<StateFragment>();
  }
  checkpoints_.save(progress, engine_.context().job, fragments, keep_last);
}

std::optional<LoadedState> StateCheckpoint::load(const ResumeCheck& check) {
  std::optional<LoadedState> loaded = checkpoints_.load_newest(pieces<StateTarget>(), check);
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
