#include "runtime/base/nearest.h"

#include <gtest/gtest.h>

namespace ananke {
namespace {

using Names = std::vector<std::string>;

TEST(Nearest, IsEmptyWhereNothingIsNear) {
  EXPECT_EQ(nearest_name("hidden_size", {}), "");
  EXPECT_EQ(nearest_name("hidden_size", {"vocab_size", "seed"}), "");
  EXPECT_EQ(nearest_name("", {"a", "bc"}), "");
  EXPECT_EQ(nearest_name("xy", {"lr"}), "") << "every letter would change";
}

TEST(Nearest, SeesThroughSlips) {
  const Names names = {"hidden_size", "head_dim", "COSINE", "steps"};
  EXPECT_EQ(nearest_name("hiden_size", names), "hidden_size");
  EXPECT_EQ(nearest_name("hdden_size", names), "hidden_size");
  EXPECT_EQ(nearest_name("head_dmi", names), "head_dim");
  EXPECT_EQ(nearest_name("cosine", names), "COSINE");
  EXPECT_EQ(nearest_name("step", names), "steps");
}

TEST(Nearest, SuggestsTheNearestOrListsWhatThereIs) {
  EXPECT_EQ(suggestion("step", {"steps", "seed"}), "; did you mean 'steps'?");
  EXPECT_EQ(suggestion("hidden", {"steps", "seed"}), "; there are: steps, seed");
  EXPECT_EQ(suggestion("hidden", {"steps"}), "; there is only steps");
  EXPECT_EQ(suggestion("hidden", {}), "");
}

}  // namespace
}  // namespace ananke
