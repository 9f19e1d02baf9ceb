#include "runtime/engine/traffic_counter.h"

#include <gtest/gtest.h>

#include "ananke/telemetry.pb.h"
#include "tests/runtime/comm/small_model.h"

namespace ananke {
namespace {

std::string text_of(const StepRecord& record) {
  std::string text;
  for (const TrafficRecord& line : record.traffic()) {
    text += fmt::format("{} {} {} {} {}\n", line.resource(), line.axis(), line.unit(), line.direction(), line.bytes());
  }
  return text;
}

TEST(TrafficCounter, SumsUnitsOfAKindAndReportsWhatHasGrown) {
  const ParameterTable table(testing::make_model({.layers = 2, .experts = 3}));
  // Units: embedding, layer.0.dense, layer.0.experts, layer.1.dense, layer.1.experts, head.
  Traffic traffic = {{Resource::network, "shard", 1, Direction::gather, 10},
                     {Resource::network, "shard", 3, Direction::gather, 20},
                     {Resource::network, "shard", 3, Direction::reduce, 5},
                     {Resource::network, "expert_shard", 2, Direction::gather, 7},
                     {Resource::nvlink, "expert", -1, Direction::dispatch, 100},
                     {Resource::network, "replicate", 0, Direction::reduce, 0}};
  TrafficCounter counter(table);
  StepRecord first;
  counter.report(traffic, first);
  EXPECT_EQ(text_of(first),
            "network expert_shard experts gather 7\n"
            "network shard dense gather 30\n"
            "network shard dense reduce 5\n"
            "nvlink expert none dispatch 100\n");
  EXPECT_EQ(first.gather_bytes(), 37u);
  EXPECT_EQ(first.reduce_bytes(), 5u);

  traffic[1].bytes += 3;
  traffic[5].bytes += 9;
  StepRecord second;
  counter.report(traffic, second);
  EXPECT_EQ(text_of(second), "network replicate embedding reduce 9\nnetwork shard dense gather 3\n");
  EXPECT_EQ(second.gather_bytes(), 3u);
  EXPECT_EQ(second.reduce_bytes(), 9u);

  StepRecord nothing;
  counter.report(traffic, nothing);
  EXPECT_EQ(text_of(nothing), "");
  EXPECT_EQ(nothing.gather_bytes(), 0u);
}

TEST(TrafficCounter, AModelWithoutTrafficHasNone) {
  const ParameterTable table(testing::make_model({}));
  StepRecord record;
  TrafficCounter(table).report({}, record);
  EXPECT_EQ(record.traffic_size(), 0);
  EXPECT_EQ(record.gather_bytes() + record.reduce_bytes(), 0u);
}

}  // namespace
}  // namespace ananke
