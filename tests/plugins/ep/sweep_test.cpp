#include "tests/plugins/ep/sweep.h"

namespace ananke::testing {
namespace {

class EpSweep : public ::testing::TestWithParam<int> {};

TEST_P(EpSweep, IsTheSameAsOneRankInEveryRandomCase) { sweep_random_cases(GetParam(), 100, 1000); }

INSTANTIATE_TEST_SUITE_P(Ranks, EpSweep, ::testing::Values(1, 2, 3, 4, 5, 8));

}  // namespace
}  // namespace ananke::testing
