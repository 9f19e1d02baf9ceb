#include "runtime/topology/places.h"

#include <gtest/gtest.h>

#include "tests/refusal.h"
#include "tests/runtime/topology/machines.h"

namespace ananke {
namespace {

using Names = std::vector<std::string>;
using Slurm = std::map<std::string, SlurmAddress>;

Site plain_site() {
  Site site;
  site.set_name("plain");
  return site;
}
std::string groups_of(const Places& places) {
  std::string text;
  for (const NodePlace& node : places.nodes)
    text += fmt::format("{}{}:{}/{}", text.empty() ? "" : " ", node.node, node.group, node.rack);
  return text;
}

TEST(NaturalLess, IsAStrictOrderThatCounts) {
  const Names sorted{"a", "a01", "a1", "a2", "a10", "a10b", "a10b2", "a10b10", "a123456789012345678901234567890", "b"};
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    for (std::size_t j = 0; j < sorted.size(); ++j) {
      EXPECT_EQ(natural_less(sorted[i], sorted[j]), i < j) << sorted[i] << " " << sorted[j];
    }
  }
}

TEST(Places, RefuseANodeThatIsThereTwice) {
  EXPECT_ERROR(find_places({"n1", "n2", "n1"}, plain_site(), {}), ErrorKind::config, "node n1 is named twice");
}

TEST(Places, AreThoseOfTheNames) {
  const Places places = find_places({"n-006-01", "n-001-02"}, racked_site(), {});
  EXPECT_EQ(groups_of(places), "n-001-02:1/1 n-006-01:2/6");
  EXPECT_EQ(places.nodes[0].slot, 2);
  EXPECT_EQ(places.source, "names (n-{rack:3}-{slot:2})");
  EXPECT_TRUE(places.notices.empty());
}

TEST(Places, OfUnknownNamesAreToldOf) {
  const Places some = find_places({"n-006-01", "login3", "n-126-01"}, racked_site(), {});
  EXPECT_EQ(groups_of(some), "login3:/ n-006-01:2/6 n-126-01:/");
  ASSERT_EQ(some.notices.size(), 1u);
  EXPECT_EQ(
      some.notices[0],
      "2 of 3 nodes (login3, n-126-01) are not called as site 'racked' knows them (n-{rack:3}-{slot:2}), and Slurm "
      "tells no switches of them: these are taken for a group of their own, in the order of their names");
  const Places none = find_places({"b10", "b9"}, plain_site(), {});
  EXPECT_EQ(groups_of(none), "b9:/ b10:/");
  ASSERT_EQ(none.notices.size(), 1u);
  EXPECT_NAMES(none.notices[0], "site 'plain' does not say how its nodes are called (topology.host_names)");
  EXPECT_NAMES(none.notices[0], "nodes are taken in the order of their names");
}

TEST(Places, AreSlurmsSwitchesWhereNamesTellNothing) {
  const Slurm slurm{{"a", {"core.g1.leaf1.a", "switch.switch.switch.node"}},
                    {"b", {"core.g2.leaf3.b", "switch.switch.switch.node"}},
                    {"c.d", {"core.g1.leaf2.c.d", "switch.switch.switch.node"}}};
  const Places places = find_places({"c.d", "b", "a"}, plain_site(), slurm);
  EXPECT_EQ(groups_of(places), "a:g1/leaf1 b:g2/leaf3 c.d:g1/leaf2");
  EXPECT_EQ(places.source, "Slurm's switches");
  EXPECT_EQ(groups_of(find_places({"a", "c.d"}, plain_site(), slurm)), "a:leaf1/leaf1 c.d:leaf2/leaf2")
      << "where all are behind one switch, the next level tells them apart";
  EXPECT_EQ(groups_of(find_places({"n-001-01"}, racked_site(), {{"n-001-01", {"x.n-001-01", "switch.node"}}})),
            "n-001-01:1/1")
      << "the site knows its names better";
}

TEST(Places, DoWithoutAnAddressThatSaysNothing) {
  const SlurmAddress good{"s1.a", "switch.node"};
  for (const SlurmAddress& bad : {SlurmAddress{"", ""}, SlurmAddress{"b", "node"}, SlurmAddress{"b", "switch.node"},
                                  SlurmAddress{"s1.b", ""}, SlurmAddress{"s1.b", "switch.switch"}}) {
    const Places places = find_places({"a", "b"}, plain_site(), {{"a", good}, {"b", bad}});
    EXPECT_EQ(groups_of(places), "a:/ b:/") << bad.address << " " << bad.pattern;
    EXPECT_EQ(places.notices.size(), 1u);
  }
}

TEST(SomeOf, CountsTheRest) {
  EXPECT_EQ(some_of({}), "");
  EXPECT_EQ(some_of({"a", "b"}), "a, b");
  EXPECT_EQ(some_of({"a", "b", "c", "d", "e"}), "a, b, c and 2 more");
}

}  // namespace
}  // namespace ananke
