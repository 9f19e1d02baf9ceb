// Every parameter of a model, in order: name (Hugging Face's), shape, what it is, and the unit it is gathered with.
// A pure function of the Model message; initialisation, optimizer rules, placement, checkpoints and export all use it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tensor/tensor.h"

namespace ananke {

class Model;  // proto/ananke/model.proto

enum class ParameterKind { embedding, matrix, norm, router, expert, head };
const char* name_of(ParameterKind kind) noexcept;

struct Parameter {
  std::string name;
  Shape shape;  // [out, in] for matrices, [width] for norms
  ParameterKind kind;
  int unit;    // index into units
  int layer;   // -1 outside the decoder layers
  int expert;  // -1 unless kind is expert
};

enum class UnitKind { embedding, dense, experts, head };
const char* name_of(UnitKind kind) noexcept;

// Parameters that are gathered together, stored as one flat array in the order of `parameters`.
struct Unit {
  std::string name;  // "embedding", "layer.3.dense", "layer.3.experts", "head"
  UnitKind kind;
  std::vector<int> parameters;  // indices into the table
};

enum class BlockKind { embedding, layer, head };

// What is recomputed together.
struct Block {
  BlockKind kind;
  int layer;               // -1 unless kind is layer
  bool moe;                // a layer whose MLP is a mixture of experts
  std::vector<int> units;  // in the order the block uses them; a tied head uses {embedding, head}
};

class ParameterTable {
 public:
  explicit ParameterTable(const Model& model);
  const std::vector<Parameter>& parameters() const noexcept { return parameters_; }
  const std::vector<Unit>& units() const noexcept { return units_; }
  const std::vector<Block>& blocks() const noexcept { return blocks_; }  // embedding, layers, head
  // What is kept, exported and loaded like a parameter but has no gradient and no unit (-1): the routers' biases, f32
  // [E] per MoE layer, equal on every rank.
  const std::vector<Parameter>& buffers() const noexcept { return buffers_; }
  int find(std::string_view name) const noexcept;  // -1 if there is none
  std::int64_t total() const noexcept { return total_; }
  std::int64_t active() const noexcept { return active_; }  // per token: k experts of each MoE layer
  // Forward and backward per token of a row of `context` tokens without document cuts, causal half counted:
  // 6 x (active - embedding) + 12 x layers x heads x head_dim x context / 2. No recompute.
  double flops_per_token(std::int64_t context) const noexcept;

 private:
  int add_unit(std::string name, UnitKind kind);
  void add(std::string name, Shape shape, ParameterKind kind, int unit, int layer = -1, int expert = -1);
  void add_layer(const Model& model, int layer);
  std::vector<Parameter> parameters_, buffers_;
  std::vector<Unit> units_;
  std::vector<Block> blocks_;
  std::int64_t total_ = 0;
  std::int64_t active_ = 0;
  std::int64_t multiplied_ = 0;  // active parameters that take part in a product per token
  double attention_flops_per_context_ = 0;
};

// Is layer `layer` a mixture of experts? decoder_sparse_step and mlp_only_layers as in transformers.
bool is_moe_layer(const Model& model, int layer);

}  // namespace ananke
