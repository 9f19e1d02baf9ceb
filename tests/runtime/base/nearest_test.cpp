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

// The comparison takes the product of both lengths: 10^12 steps here, and memory of the longer one.
TEST(Nearest, GivesUpOnWhatNobodyMistypes) {
  const std::string longest(256, 'a');
  EXPECT_EQ(nearest_name(longest, {"steps", longest}), longest);
  const std::string too_long(1 << 20, 'a');
  EXPECT_EQ(nearest_name(too_long, {"steps", too_long}), "");
  EXPECT_EQ(nearest_name("steps", {too_long, "steps"}), "steps");
  EXPECT_EQ(suggestion(too_long, {"steps", "seed"}), "; there are: steps, seed");
}

TEST(Nearest, SuggestsTheNearestOrListsWhatThereIs) {
  EXPECT_EQ(suggestion("step", {"steps", "seed"}), "; did you mean 'steps'?");
  EXPECT_EQ(suggestion("hidden", {"steps", "seed"}), "; there are: steps, seed");
  EXPECT_EQ(suggestion("hidden", {"steps"}), "; there is only steps");
  EXPECT_EQ(suggestion("hidden", {}), "");
}

}  // namespace
}  // namespace ananke
