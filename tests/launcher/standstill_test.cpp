#include "launcher/standstill.h"

#include <gtest/gtest.h>

namespace ananke {
namespace {

WorkerStatus at(std::uint64_t step, std::uint64_t place, const std::string& activity, bool waits) {
  WorkerStatus status;
  status.joined = status.connected = true;
  status.phase = "step";
  status.step = step;
  status.place = place;
  status.item = place == 0 ? "" : "item " + std::to_string(place) + " of 9";
  status.activity = activity;
  status.waits = waits;
  return status;
}

TEST(WhereRanksAre, GroupsThoseWhoSayTheSameAndTellsWhoIsBehindFirst) {
  std::vector<WorkerStatus> workers(5, at(17, 7, "communicator.all_gather", true));
  workers[3] = at(17, 4, "optimizer plugin", false);
  workers[4].finished = true;
  const std::vector<std::string> expected{"rank 3: step 17, item 4 of 9, inside optimizer plugin",
                                          "ranks 0-2: step 17, item 7 of 9, waiting in communicator.all_gather"};
  EXPECT_EQ(where_ranks_are(workers, -1), expected);
  EXPECT_EQ(where_ranks_are(workers, 3), std::vector<std::string>(expected.begin() + 1, expected.end()));
}

TEST(WhereRanksAre, AnItemIsNotToldOfOtherPhasesAndWhoHasNotJoinedIs) {
  std::vector<WorkerStatus> workers(2, at(8, 9, "", false));
  workers[0].phase = "checkpoint";
  workers[1].joined = false;
  EXPECT_EQ(where_ranks_are(workers, -1),
            (std::vector<std::string>{"rank 1: not joined", "rank 0: phase 'checkpoint', step 8"}));
}

TEST(WhereRanksAre, ManyPlacesAreCounted) {
  std::vector<WorkerStatus> workers;
  for (std::uint64_t rank = 0; rank < 100; ++rank) workers.push_back(at(1, rank + 1, "", false));
  const std::vector<std::string> lines = where_ranks_are(workers, -1, 5);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[3], "rank 3: step 1, item 4 of 9");
  EXPECT_EQ(lines[4], "96 more ranks, each elsewhere");
}

TEST(Indented, CutsLongTexts) {
  EXPECT_EQ(indented("a\nb\n", "  ", 3), "  a\n  b");
  EXPECT_EQ(indented("a\nb\nc\nd\n", "  ", 2), "  a\n  b\n  ... 2 more lines");
  EXPECT_EQ(indented("", "  ", 2), "");
}

}  // namespace
}  // namespace ananke
