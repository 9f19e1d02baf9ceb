#include "runtime/health/history.h"

#include <gtest/gtest.h>

#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

NodeHealth node_with(double downed, const std::string& boot = "b1") {
  NodeHealth node;
  node.set_node("n1");
  node.set_boot(boot);
  node.set_time("2026-11-30T09:05:00Z");
  CheckResult& check = *node.add_check();
  check.set_id("ib.flap");
  check.set_reason("not to be kept");
  HealthValue& value = *check.add_value();
  value.set_name("link_downed");
  value.set_entity("mlx5_0/1");
  value.set_number(downed);
  value.set_compare(HealthValue::COUNTER);
  check.add_value()->set_name("not compared");
  return node;
}

TEST(HealthHistory, RefusesNamesThatAreNone) {
  const TemporaryFolder folder;
  for (const char* name : {"", "../x", ".x"})
    EXPECT_ERROR(read_history(folder.path(), name), ErrorKind::config, "no name of a node");
  EXPECT_ERROR(add_to_history(folder.write("file", "x") / "below", node_with(0)), ErrorKind::resource, "n1.jsonl");
}

TEST(HealthHistory, KeepsWhatIsComparedAndTheLast64) {
  const TemporaryFolder folder;
  EXPECT_TRUE(read_history(folder.path(), "n1").empty());
  for (int i = 0; i < 70; ++i) add_to_history(folder.path(), node_with(i));
  const std::vector<NodeHealth> history = read_history(folder.path(), "n1");
  ASSERT_EQ(history.size(), 64U);
  ASSERT_EQ(history.back().check_size(), 1);
  ASSERT_EQ(history.back().check(0).value_size(), 1);
  EXPECT_EQ(history.back().check(0).value(0).number(), 69);
  EXPECT_EQ(history.back().check(0).reason(), "");
  ASSERT_NE(since_boot(history, "b1"), nullptr);
  EXPECT_EQ(since_boot(history, "b2"), nullptr) << "counters of another boot say nothing";
  EXPECT_EQ(since_boot(history, ""), nullptr);
}

TEST(HealthHistory, ALineThatIsNoneIsLeftOut) {
  const TemporaryFolder folder;
  add_to_history(folder.path(), node_with(1));
  std::ofstream(folder / "n1.jsonl", std::ios::app) << "{\"node\":\"n1\",\"bo\n";
  EXPECT_EQ(read_history(folder.path(), "n1").size(), 1U);
}

}  // namespace
}  // namespace ananke
