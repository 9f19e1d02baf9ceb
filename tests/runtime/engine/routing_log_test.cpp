#include "runtime/engine/routing_log.h"

#include <gtest/gtest.h>

#include <fstream>

#include "runtime/base/error.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

const RoutingShape shape{3, 4, 2, 5, 2};

std::vector<std::int32_t> decisions(std::uint64_t step, std::uint64_t row, std::uint64_t layer) {
  std::vector<std::int32_t> indices(10);
  for (std::size_t i = 0; i < 10; ++i) indices[i] = static_cast<std::int32_t>(step * 1000 + row * 100 + layer * 10 + i);
  return indices;
}

TEST(RoutingLog, RefusesForeignFilesAndOtherJobs) {
  const TemporaryFolder folder;
  EXPECT_THROW(RoutingLog::open(folder.path() / "none", shape), Error);
  std::ofstream(folder.path() / "text") << "not a log";
  EXPECT_THROW(RoutingLog::open(folder.path() / "text", shape), Error);
  RoutingLog::create(folder.path() / "log", shape);
  RoutingShape other = shape;
  other.k = 3;
  EXPECT_THROW(RoutingLog::open(folder.path() / "log", other), Error);
  other = shape;
  other.steps = 4;
  EXPECT_THROW(RoutingLog::open(folder.path() / "log", other), Error);
  const RoutingLog empty = RoutingLog::open(folder.path() / "log", shape);
  std::vector<std::int32_t> out(10);
  EXPECT_THROW(empty.read(1, 0, 0, out.data()), Error);
}

TEST(RoutingLog, GivesBackWhatWasWrittenInAnyOrder) {
  const TemporaryFolder folder;
  {
    RoutingLog log = RoutingLog::create(folder.path() / "log", shape);
    for (std::uint64_t step = 3; step >= 1; --step) {
      for (std::uint64_t row = 0; row < 4; ++row) {
        for (std::uint64_t layer = 0; layer < 2; ++layer)
          log.write(step, row, layer, decisions(step, row, layer).data());
      }
    }
  }
  RoutingShape shorter = shape;
  shorter.steps = 2;
  const RoutingLog log = RoutingLog::open(folder.path() / "log", shorter);
  std::vector<std::int32_t> out(10);
  log.read(2, 3, 1, out.data());
  EXPECT_EQ(out, decisions(2, 3, 1));
}

}  // namespace
}  // namespace ananke
