#include "runtime/model/local_experts.h"

#include <gtest/gtest.h>

#include "tests/refusal.h"

namespace ananke {
namespace {

TEST(LocalExperts, RefuseAMicrobatchWhoseRowsCannotBeCounted) {
  const LocalExperts experts;
  ExpertSizes sizes{.tokens = (std::int64_t{1} << 31) / 4, .hidden = 8, .experts = 16, .k = 4};
  EXPECT_ERROR(experts.capacity(sizes), ErrorKind::config, "536870912 tokens that visit 4 experts", "2147483648 rows",
               "training.rows_per_microbatch");
  --sizes.tokens;
  EXPECT_EQ(experts.capacity(sizes), sizes.tokens * 4);
}

}  // namespace
}  // namespace ananke
