#include "runtime/bootstrap/node_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/refusal.h"

namespace ananke {
namespace {

Identity worker_on(const std::string& host, int local_rank, int process_rank, int size = 8) {
  return {.rank = process_rank,
          .size = size,
          .local_rank = local_rank,
          .local_size = 2,
          .node_index = 0,
          .host = host,
          .job_id = "77",
          .source = "Slurm's environment"};
}

Identity ordered(const Identity& identity, const char* nodes) {
  return in_node_order(identity, [&](const char* name) {
    EXPECT_STREQ(name, "ANANKE_NODES");
    return nodes;
  });
}

TEST(NodeOrder, RefusesANodeThatIsNotAmongThem) {
  EXPECT_ERROR(ordered(worker_on("d", 0, 0), "a,b,c,x"), ErrorKind::config,
               "on node 'd' (by Slurm's environment), which is none of the 4 nodes that the launcher named (a, ...)");
  EXPECT_ERROR(ordered(worker_on("", 0, 0), "a,b"), ErrorKind::config, "on node ''");
}

TEST(NodeOrder, RefusesNodesOfUnequalNumbers) {
  EXPECT_ERROR(ordered(worker_on("a", 0, 0), "a,b,c"), ErrorKind::config, "node a has 2 workers",
               "8 workers on 3 nodes are 2.6");
  EXPECT_ERROR(ordered(worker_on("a", 0, 0, 6), "a,b,c,d"), ErrorKind::config, "6 workers on 4 nodes are 1.5");
}

TEST(NodeOrder, LeavesThingsAsTheyAreWhereThereIsNone) {
  for (const char* none : {static_cast<const char*>(nullptr), ""}) {
    const Identity same = ordered(worker_on("a", 1, 5), none);
    EXPECT_EQ(same.rank, 5);
    EXPECT_EQ(same.node_index, 0);
  }
}

// Whatever a process manager numbers its tasks by, the rank is that of the node and the worker there.
TEST(NodeOrder, DoesNotDependOnTheProcessManagersNumbers) {
  const std::vector<std::string> hosts{"c", "a", "d", "b"};
  std::vector<int> numbers(8);
  std::iota(numbers.begin(), numbers.end(), 0);
  do {
    for (int worker = 0; worker < 8; ++worker) {
      const std::string& host = hosts[static_cast<std::size_t>(worker / 2)];
      const Identity me = ordered(worker_on(host, worker % 2, numbers[static_cast<std::size_t>(worker)]), "c,a,d,b");
      ASSERT_EQ(me.rank, worker);
      ASSERT_EQ(me.node_index, worker / 2);
      ASSERT_EQ(me.local_rank, worker % 2);
    }
    std::ranges::rotate(numbers, numbers.begin() + 3);
  } while (std::ranges::next_permutation(numbers).found && numbers[0] != 0);
}

}  // namespace
}  // namespace ananke
