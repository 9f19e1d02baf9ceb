#include "runtime/base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace ananke {
namespace {

TEST(Random, IsAPureFunctionOfSeedNameAndIndex) {
  const RandomKey a(1, "x"), b(1, "x"), other_name(1, "y"), other_seed(2, "x");
  int equal_name = 0, equal_seed = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(a.bits(i), b.bits(i));
    equal_name += a.bits(i) == other_name.bits(i);
    equal_seed += a.bits(i) == other_seed.bits(i);
  }
  EXPECT_EQ(equal_name, 0);
  EXPECT_EQ(equal_seed, 0);
}

TEST(Random, TruncatedNormalStaysInsideThreeDeviationsWithTheRightMoments) {
  const RandomKey key(7, "weights");
  const int n = 200000;
  double sum = 0, squares = 0;
  for (int i = 0; i < n; ++i) {
    const double z = key.truncated_normal(static_cast<std::uint64_t>(i));
    ASSERT_LE(std::abs(z), 3.0 + 1e-6);
    sum += z;
    squares += z * z;
  }
  EXPECT_NEAR(sum / n, 0, 0.01);
  EXPECT_NEAR(squares / n, 0.9733, 0.01);  // 1 - 2*3*phi(3)/(2*Phi(3)-1)
}

TEST(Random, PermutedVisitsEveryIndexOnceForAwkwardSizes) {
  for (std::uint64_t count : {1, 2, 3, 4, 5, 17, 64, 101, 1000}) {
    for (std::uint64_t epoch : {0, 1}) {
      const RandomKey key(epoch, "order");
      std::vector<int> seen(count, 0);
      for (std::uint64_t i = 0; i < count; ++i) {
        const std::uint64_t p = permuted(key, count, i);
        ASSERT_LT(p, count);
        ++seen[p];
      }
      for (int times : seen) EXPECT_EQ(times, 1) << count;
    }
  }
}

TEST(Random, PermutationsOfTwoEpochsDiffer) {
  int same = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) same += permuted(RandomKey(0, "o"), 1000, i) == permuted(RandomKey(1, "o"), 1000, i);
  EXPECT_LT(same, 20);
}

}  // namespace
}  // namespace ananke
