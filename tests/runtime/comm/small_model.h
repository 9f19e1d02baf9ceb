// A small model of any shape for tests that need a parameter table.
#pragma once

#include "ananke/model.pb.h"

namespace ananke::testing {

struct SmallModel {
  unsigned layers = 2;
  unsigned experts = 5;
  unsigned hidden = 8;
  unsigned vocabulary = 21;
  unsigned width = 6;        // of an expert and of a dense MLP
  unsigned sparse_step = 1;  // 2: every other layer is dense
  bool tied = false;
};

inline Model make_model(const SmallModel& shape) {
  Model model;
  model.set_vocab_size(shape.vocabulary);
  model.set_hidden_size(shape.hidden);
  model.set_num_hidden_layers(shape.layers);
  model.set_num_attention_heads(2);
  model.set_num_key_value_heads(1);
  model.set_head_dim(4);
  model.set_intermediate_size(shape.width);
  model.set_num_experts(shape.experts);
  model.set_num_experts_per_tok(shape.experts > 1 ? 2 : 1);
  model.set_moe_intermediate_size(shape.width);
  model.set_decoder_sparse_step(shape.sparse_step);
  model.set_tie_word_embeddings(shape.tied);
  return model;
}

}  // namespace ananke::testing
