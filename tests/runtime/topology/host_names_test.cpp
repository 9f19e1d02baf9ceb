#include "runtime/topology/host_names.h"

#include <gtest/gtest.h>

#include "ananke/machine.pb.h"
#include "tests/refusal.h"

namespace ananke {
namespace {

HostNames rule(const std::string& pattern) {
  HostNames names;
  names.set_pattern(pattern);
  return names;
}
std::string refused(const std::string& pattern) {
  return refusal(ErrorKind::config, [&] { HostNamePattern{rule(pattern)}; });
}
std::string where(const HostNamePattern& pattern, const std::string& node) {
  const auto place = pattern.place_of(node);
  return place ? fmt::format("{}/{}/{}", place->group, place->rack, place->slot) : "none";
}

TEST(HostNamePattern, SaysWhatIsWrongWithIt) {
  EXPECT_NAMES(refused("n{slto:2}"), "is 'n{slto:2}': there is no '{slto}'; did you mean 'slot'?");
  EXPECT_NAMES(refused("n{slot"), "'{' without '}'");
  EXPECT_NAMES(refused("n}{slot}"), "'}' without '{'");
  EXPECT_NAMES(refused("n{slot:0}"), "'0' is no number of digits (1 to 9)");
  EXPECT_NAMES(refused("n{slot:10}"), "'10' is no number of digits (1 to 9)");
  EXPECT_NAMES(refused("n{slot:}"), "'' is no number of digits (1 to 9)");
  EXPECT_NAMES(refused("{slot:1}{slot:1}"), "a number is there twice");
  EXPECT_NAMES(refused("{rack}{slot}"), "the end of a number is not told from the next one");
  EXPECT_NAMES(refused("node-{rack}"), "it has neither {slot} nor {node}");
  EXPECT_NAMES(refused(""), "it has neither {slot} nor {node}");
}

TEST(HostNamePattern, ReadsRackAndSlotAndCountsGroups) {
  HostNames names = rule("jb-{rack:3}-{slot:2}");
  names.set_racks_per_group(5);
  names.set_nodes_per_rack(48);
  names.set_racks(125);
  const HostNamePattern pattern(names);
  EXPECT_EQ(where(pattern, "jb-001-01"), "1/1/1");
  EXPECT_EQ(where(pattern, "jb-005-48"), "1/5/48");
  EXPECT_EQ(where(pattern, "jb-006-01"), "2/6/1");
  EXPECT_EQ(where(pattern, "jb-125-45"), "25/125/45");
  for (const char* other : {"jb-000-01", "jb-126-01", "jb-001-00", "jb-001-49", "jb-01-01", "jb-001-1", "jb-0001-01",
                            "jb-001-01x", "xjb-001-01", "jb-001-", "", "jb-00a-01"}) {
    EXPECT_EQ(where(pattern, other), "none") << other;
  }
  const std::vector<std::string> all = pattern.all();
  EXPECT_EQ(all.size(), 125u * 48);
  EXPECT_EQ(all.front(), "jb-001-01");
  EXPECT_EQ(all.back(), "jb-125-48");
  for (const std::string& node : all) ASSERT_NE(where(pattern, node), "none") << node;
}

TEST(HostNamePattern, CountsRacksWhereNodesAreNumberedThrough) {
  HostNames names = rule("nid{node:6}");
  EXPECT_EQ(where(HostNamePattern(names), "nid000123"), "//-1");
  EXPECT_ERROR(HostNamePattern(names).all(), ErrorKind::config, "does not say how many nodes are called 'nid{node:6}'");
  names.set_nodes_per_rack(112);
  names.set_racks_per_group(2);
  names.set_first_node(1000);
  names.set_nodes(400);
  const HostNamePattern pattern(names);
  EXPECT_EQ(where(pattern, "nid001000"), "1/1/1");
  EXPECT_EQ(where(pattern, "nid001111"), "1/1/112");
  EXPECT_EQ(where(pattern, "nid001112"), "1/2/1");
  EXPECT_EQ(where(pattern, "nid001224"), "2/3/1");
  EXPECT_EQ(where(pattern, "nid000999"), "none");
  EXPECT_EQ(where(pattern, "nid001400"), "none");
  EXPECT_EQ(pattern.all().size(), 400u);
  EXPECT_EQ(pattern.all().front(), "nid001000");
}

TEST(HostNamePattern, TakesNumbersOfAnyLengthWithoutZerosInFront) {
  const HostNamePattern pattern(rule("g{group}r{rack}n{slot}"));
  EXPECT_EQ(where(pattern, "g3r12n1"), "3/12/1");
  EXPECT_EQ(where(pattern, "g03r12n1"), "none");
  EXPECT_EQ(where(pattern, "g3r12n1234567890"), "none") << "more digits than any machine has nodes";
}

}  // namespace
}  // namespace ananke
