#include "tests/plugins/ep/sweep.h"

namespace ananke::testing {
namespace {

TEST(EpQuickSweep, IsTheSameAsOneRankInSomeRandomCases) {
  for (const int ranks : {1, 2, 3, 4}) sweep_random_cases(ranks, 5, 1);
}

}  // namespace
}  // namespace ananke::testing
