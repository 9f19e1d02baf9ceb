// Reading what Hugging Face transformers writes: config.json of the Qwen3-MoE family, and weights by parameter name.
// Formulas and defaults: transformers, models/qwen3_moe (and models/qwen3, whose dense decoder is the same).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/safetensors.h"
#include "runtime/model/parameter_table.h"
#include "runtime/tensor/tensor.h"

namespace ananke {

// `path` is config.json or the folder that holds it. Both dialects: num_experts or num_local_experts, rope_theta or
// rope_parameters. What the file leaves out has transformers' default. A key that changes the mathematics and is not
// offered, or is not known, is refused by name and value: Error(data).
Model read_huggingface_config(const std::filesystem::path& path);

// Where a parameter is stored: a tensor of its own, or a part of one that holds all experts of a layer.
struct StoredParameter {
  std::string tensor;
  std::int64_t begin = 0;  // first element; the parameter is contiguous from there
  std::int64_t elements = 0;
};

// Finds parameter `name` of shape `shape`. An expert's matrix is looked for as its own tensor
// (model.layers.N.mlp.experts.E.gate_proj.weight), then as transformers 5 holds experts in memory:
// mlp.experts.gate_up_proj [experts, 2 x width, hidden] (gate rows first), mlp.experts.down_proj [experts, hidden,
// width]. Whatever stands before "mlp.experts." is kept, so a prefix ("grad.model.layers...") works too. Throws
// Error(data) when it is not there, there in both ways, or has another shape.
StoredParameter find_stored(const Safetensors& tensors, const std::string& name, const Shape& shape);

// The weights of a folder (or file). Construction checks that it holds every parameter in its shape and nothing else:
// a tensor that the model does not use means mathematics that it does not do.
// Tied embeddings: lm_head.weight may be absent, or present and equal to the embedding. Router biases may be absent:
// they are 0 then, as in transformers.
class HuggingfaceWeights {
 public:
  HuggingfaceWeights(const std::filesystem::path& path, const Model& model, const ParameterTable& table);
  // Elements [begin, begin + out.size()) of the parameter. Several threads may read at once.
  void read(const std::string& name, std::span<float> out, std::int64_t begin = 0) const;

 private:
  Safetensors tensors_;
  std::map<std::string, StoredParameter> stored_;
};

}  // namespace ananke
