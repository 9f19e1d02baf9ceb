#include "runtime/model/recompute.h"

#include <gtest/gtest.h>

#include "ananke/job.pb.h"

namespace ananke {
namespace {

TEST(Recompute, OfNothingAndEverything) {
  Training training;
  const Recompute none = recompute_of(training, 3);
  for (int layer = 0; layer < 3; ++layer) EXPECT_TRUE(none.of(layer).none());
  EXPECT_FALSE(none.any(LayerOperator::dispatch));
  EXPECT_EQ(recompute_text(training), "NONE");
  training.set_recompute(Training::FULL);
  EXPECT_EQ(recompute_of(training, 3).made_again, Recompute::everything(3).made_again);
  EXPECT_EQ(recompute_of(training, 3).of(2), LayerOperators::all());
  EXPECT_EQ(recompute_text(training), "FULL");
}

TEST(Recompute, SelectsOperatorsByName) {
  Training training;
  training.set_recompute(Training::SELECTIVE);
  using enum LayerOperator;
  EXPECT_EQ(recompute_of(training, 1).of(0), (LayerOperators{norms, dispatch, grouped_mlp}));
  EXPECT_EQ(recompute_text(training), "SELECTIVE (norms, dispatch, grouped_mlp)");
  for (const Training::LayerOperator one :
       {Training::NORMS, Training::PROJECTIONS, Training::ATTENTION, Training::RESIDUAL, Training::ROUTER,
        Training::DISPATCH, Training::GROUPED_MLP}) {
    training.add_recompute_operators(one);
    const LayerOperators again = recompute_of(training, 1).of(0);
    for (int other = 0; other <= Training::LayerOperator_MAX; ++other) {
      EXPECT_EQ(again.has(static_cast<LayerOperator>(other)), other <= one) << other << " " << one;
    }
  }
  EXPECT_EQ(recompute_of(training, 1).of(0), LayerOperators::all());
}

TEST(Recompute, HasRangesOfLayersOfTheirOwn) {
  Training training;
  training.set_recompute(Training::FULL);
  Training::RecomputeLayers* range = training.add_recompute_layers();
  range->set_first(1);
  range->set_last(2);
  range->set_recompute(Training::SELECTIVE);
  range->add_operators(Training::ROUTER);
  range = training.add_recompute_layers();
  range->set_first(4);
  range->set_last(4);
  range->set_recompute(Training::NONE);
  const Recompute recompute = recompute_of(training, 5);
  const LayerOperators router{LayerOperator::router}, all = LayerOperators::all(), none;
  EXPECT_EQ(recompute.made_again, (std::vector<LayerOperators>{all, router, router, all, none}));
  EXPECT_TRUE(recompute.any(LayerOperator::dispatch));
  EXPECT_EQ(recompute_text(training), "FULL, layers 1-2 SELECTIVE (router), layer 4 NONE");
}

}  // namespace
}  // namespace ananke
