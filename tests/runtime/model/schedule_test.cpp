#include "runtime/model/schedule.h"

#include <gtest/gtest.h>

#include <map>

#include "ananke/model.pb.h"
#include "runtime/base/error.h"

namespace ananke {
namespace {

Model small_model(bool tied) {
  Model model;
  model.set_vocab_size(32);
  model.set_hidden_size(8);
  model.set_num_hidden_layers(2);
  model.set_num_attention_heads(2);
  model.set_num_key_value_heads(1);
  model.set_head_dim(4);
  model.set_num_experts(4);
  model.set_num_experts_per_tok(2);
  model.set_moe_intermediate_size(8);
  model.set_tie_word_embeddings(tied);
  return model;
}

TEST(Schedule, RefusesAStepWithoutMicrobatches) {
  const ParameterTable table(small_model(false));
  EXPECT_THROW(training_schedule(table, 0, LoopOrder::microbatch_outer), Error);
}

TEST(Schedule, RefusesGroupsThatMicrobatchesAreNoMultipleOf) {
  const ParameterTable table(small_model(false));
  for (const int per_gather : {0, -1, 3, 8}) EXPECT_THROW(training_schedule(table, 4, per_gather), Error) << per_gather;
}

TEST(Schedule, TakesTheMicrobatchesOfAGroupThroughTheModelTogether) {
  const ParameterTable table(small_model(false));
  const int blocks = static_cast<int>(table.blocks().size());
  for (const int per_gather : {1, 2, 3, 6}) {
    const Schedule schedule = training_schedule(table, 6, per_gather);
    const Schedule group = training_schedule(table, per_gather, LoopOrder::layer_outer);
    ASSERT_EQ(schedule.size(), static_cast<std::size_t>(6 * (2 * blocks - 1)));
    for (std::size_t i = 0; i < schedule.size(); ++i) {
      const Item& wanted = group[i % group.size()];
      EXPECT_EQ(schedule[i].block, wanted.block);
      EXPECT_EQ(schedule[i].phase, wanted.phase);
      EXPECT_EQ(schedule[i].microbatch, wanted.microbatch + static_cast<int>(i / group.size()) * per_gather);
    }
  }
}

// Whatever the order of the list, each unit's first and last marks are where a reader of the list would put them.
TEST(Schedule, MarksFirstAndLastUsesInEveryOrder) {
  for (bool tied : {false, true}) {
    const ParameterTable table(small_model(tied));
    for (const int per_gather : {1, 2, 6}) {
      for (const int microbatches : {per_gather, 6}) {
        const Schedule schedule = training_schedule(table, microbatches, per_gather);
        EXPECT_EQ(schedule.size(), static_cast<std::size_t>(microbatches) * (2 * (table.blocks().size() - 1) + 1));
        std::map<int, int> first_use, last_use, first_gradient, last_gradient;
        for (const Item& item : schedule) {
          for (const UnitUse& use : item.units) {
            if (use.first_use) {
              EXPECT_EQ(first_use[use.unit]++, 0);
            }
            if (use.needs_weights) {
              EXPECT_EQ(first_use[use.unit], 1);
              EXPECT_EQ(last_use[use.unit], 0) << "used after its last use";
            }
            if (use.last_use) ++last_use[use.unit];
            if (use.first_gradient) {
              EXPECT_EQ(first_gradient[use.unit]++, 0);
            }
            if (item.phase != Phase::forward) {
              EXPECT_EQ(first_gradient[use.unit], 1);
              EXPECT_EQ(last_gradient[use.unit], 0) << "gradient after its last";
            }
            if (use.last_gradient) ++last_gradient[use.unit];
          }
        }
        for (std::size_t unit = 0; unit < table.units().size(); ++unit) {
          EXPECT_EQ(first_use[static_cast<int>(unit)], 1);
          EXPECT_EQ(last_use[static_cast<int>(unit)], 1);
          EXPECT_EQ(first_gradient[static_cast<int>(unit)], 1);
          EXPECT_EQ(last_gradient[static_cast<int>(unit)], 1);
        }
      }
    }
  }
}

TEST(Schedule, EmbeddingBackwardNeedsNoTable) {
  const ParameterTable table(small_model(false));
  const Schedule schedule = training_schedule(table, 1, LoopOrder::microbatch_outer);
  EXPECT_TRUE(schedule.front().units[0].needs_weights);
  EXPECT_FALSE(schedule.back().units[0].needs_weights);
  EXPECT_TRUE(schedule.front().units[0].last_use);
}

TEST(Schedule, ATiedHeadUsesTheEmbeddingsUnit) {
  const ParameterTable table(small_model(true));
  const Schedule schedule = training_schedule(table, 1, LoopOrder::microbatch_outer);
  const auto head =
      std::find_if(schedule.begin(), schedule.end(), [](const Item& i) { return i.phase == Phase::both; });
  ASSERT_EQ(head->units.size(), 2u);
  EXPECT_EQ(head->units[0].unit, schedule.front().units[0].unit);
  EXPECT_TRUE(head->units[0].first_gradient);
  EXPECT_TRUE(schedule.back().units[0].last_gradient);
}

}  // namespace
}  // namespace ananke
