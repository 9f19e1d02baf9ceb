#include "runtime/engine/initial_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace ananke {
namespace {

const Parameter first{"model.layers.0.self_attn.q_proj.weight", Shape{24, 16}, ParameterKind::matrix, 0, 0, -1};
const Parameter second{"model.layers.1.self_attn.q_proj.weight", Shape{24, 16}, ParameterKind::matrix, 1, 1, -1};

std::vector<float> assembled(const Parameter& parameter, int shards) {
  std::vector<float> whole(static_cast<std::size_t>(parameter.shape.elements()));
  const auto each = (whole.size() + static_cast<std::size_t>(shards) - 1) / static_cast<std::size_t>(shards);
  for (std::size_t begin = 0; begin < whole.size(); begin += each) {
    initial_weights(parameter, 5, 0.02, static_cast<std::int64_t>(begin),
                    std::span(whole).subspan(begin, std::min(each, whole.size() - begin)));
  }
  return whole;
}

// Two layers of equal shape on 2 and 4 shards: layers differ, shards differ, and the assembled tensor is the same.
TEST(InitialWeights, DifferByLayerAndShardButNotByTheNumberOfShards) {
  const std::vector<float> one = assembled(first, 1);
  EXPECT_EQ(one, assembled(first, 2));
  EXPECT_EQ(one, assembled(first, 4));
  EXPECT_EQ(one, assembled(first, 5));
  EXPECT_NE(one, assembled(second, 1));
  for (int shard = 1; shard < 4; ++shard) {
    EXPECT_FALSE(std::equal(one.begin(), one.begin() + 96, one.begin() + shard * 96)) << shard;
  }
}

TEST(InitialWeights, AreTruncatedNormalsAndOnesForNorms) {
  double squares = 0;
  const std::vector<float> values = assembled(first, 1);
  for (float value : values) {
    EXPECT_LE(std::abs(value), 0.02F * 3.0001F);
    squares += static_cast<double>(value) * value;
  }
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(values.size())), 0.0197, 0.002);
  std::vector<float> norm(7);
  initial_weights({"model.norm.weight", Shape{7}, ParameterKind::norm, 0, -1, -1}, 5, 0.02, 0, norm);
  EXPECT_EQ(norm, std::vector<float>(7, 1.0F));
}

}  // namespace
}  // namespace ananke
