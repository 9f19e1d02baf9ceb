#include "runtime/model/parameter_table.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <set>

#include "ananke/model.pb.h"

namespace ananke {
namespace {

Model parse(const std::string& text) {
  Model model;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &model));
  return model;
}

const char* mixed =
    R"(vocab_size: 100 hidden_size: 12 num_hidden_layers: 4 num_attention_heads: 3 num_key_value_heads: 1
  head_dim: 8 intermediate_size: 20 num_experts: 5 num_experts_per_tok: 2 moe_intermediate_size: 7
  decoder_sparse_step: 2 mlp_only_layers: 3)";

TEST(ParameterTable, PlacesDenseAndExpertLayersAsTransformersDoes) {
  const Model model = parse(mixed);
  EXPECT_FALSE(is_moe_layer(model, 0));
  EXPECT_TRUE(is_moe_layer(model, 1));
  EXPECT_FALSE(is_moe_layer(model, 2));
  EXPECT_FALSE(is_moe_layer(model, 3)) << "listed in mlp_only_layers";
}

TEST(ParameterTable, NamesShapesAndCounts) {
  const ParameterTable table(parse(mixed));
  std::set<std::string> names;
  std::int64_t total = 0;
  for (const Parameter& parameter : table.parameters()) {
    EXPECT_TRUE(names.insert(parameter.name).second) << parameter.name;
    total += parameter.shape.elements();
  }
  EXPECT_EQ(total, table.total());
  const std::int64_t attention = 24 * 12 + 8 * 12 + 8 * 12 + 12 * 24 + 8 + 8 + 12 + 12;
  const std::int64_t dense = 3 * 20 * 12, expert = 3 * 7 * 12, router = 5 * 12;
  EXPECT_EQ(total, 2 * 100 * 12 + 12 + 4 * attention + 3 * dense + 5 * expert + router);
  EXPECT_EQ(table.active(), total - 3 * expert);
  const Parameter& down =
      table.parameters()[static_cast<std::size_t>(table.find("model.layers.1.mlp.experts.4.down_proj.weight"))];
  EXPECT_EQ(down.shape, (Shape{12, 7}));
  EXPECT_EQ(down.expert, 4);
  EXPECT_EQ(table.find("model.layers.1.mlp.up_proj.weight"), -1);
}

TEST(ParameterTable, ATiedHeadHasNoMatrixOfItsOwn) {
  Model model = parse(mixed);
  model.set_tie_word_embeddings(true);
  const ParameterTable table(model);
  EXPECT_EQ(table.find("lm_head.weight"), -1);
  EXPECT_EQ(table.blocks().back().units.size(), 2u);
}

// The yardstick: 951.9B parameters, 32.8B active.
TEST(ParameterTable, KnowsTheYardsticksSize) {
  const ParameterTable table(parse(R"(vocab_size: 256000 hidden_size: 6144 num_hidden_layers: 74 num_attention_heads: 48
    num_key_value_heads: 8 head_dim: 128 num_experts: 384 num_experts_per_tok: 8 moe_intermediate_size: 1792)"));
  std::int64_t experts = 0;
  for (const Parameter& parameter : table.parameters()) {
    if (parameter.kind == ParameterKind::expert) experts += parameter.shape.elements();
  }
  EXPECT_NEAR(static_cast<double>(experts), 938.6e9, 0.1e9);
  EXPECT_NEAR(static_cast<double>(table.active() - (table.total() - experts)), 8.0 / 384 * static_cast<double>(experts),
              1e6);
}

}  // namespace
}  // namespace ananke
