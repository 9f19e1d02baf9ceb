#include "runtime/comm/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "runtime/base/error.h"
#include "tests/runtime/comm/small_model.h"

namespace ananke {
namespace {

using testing::make_model;

struct Case {
  testing::SmallModel model;
  MeshShape mesh;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int shard : {1, 2, 3, 4, 5, 7, 8, 64}) {
    all.push_back({{}, {1, shard}});
    all.push_back({{.layers = 3, .experts = 8, .sparse_step = 2, .tied = true}, {2, shard}});
    all.push_back({{.experts = 1, .hidden = 5, .vocabulary = 2, .width = 3}, {1, shard}});
    all.push_back({{.experts = 0, .hidden = 64, .vocabulary = 100, .width = 17}, {3, shard}});
  }
  return all;
}

TEST(Placement, RefusesAMeshWithoutRanks) {
  const ParameterTable table(make_model({}));
  EXPECT_THROW(Placement(table, MeshShape{1, 0}), Error);
  EXPECT_THROW(Placement(table, MeshShape{0, 1}), Error);
  const Placement placement(table, {1, 2});
  EXPECT_THROW(placement.fragments(2), Error);
  EXPECT_THROW(placement.fragments(-1), Error);
}

TEST(Placement, EveryElementHasExactlyOneOwner) {
  for (const Case& c : cases()) {
    const ParameterTable table(make_model(c.model));
    const Placement placement(table, c.mesh);
    std::vector<std::vector<int>> owners;
    for (const Parameter& parameter : table.parameters()) owners.emplace_back(parameter.shape.elements(), 0);
    for (int shard = 0; shard < c.mesh.shard; ++shard) {
      for (const Fragment& f : placement.fragments(shard)) {
        ASSERT_GT(f.count, 0);
        ASSERT_EQ(table.parameters()[f.parameter].unit, f.unit);
        auto& counts = owners[f.parameter];
        ASSERT_LE(f.begin + f.count, static_cast<std::int64_t>(counts.size()));
        for (std::int64_t i = 0; i < f.count; ++i) ++counts[f.begin + i];
      }
    }
    for (std::size_t p = 0; p < owners.size(); ++p) {
      ASSERT_TRUE(std::all_of(owners[p].begin(), owners[p].end(), [](int n) { return n == 1; }))
          << table.parameters()[p].name << " on " << to_string(c.mesh);
    }
  }
}

TEST(Placement, OwnedPartsDoNotOverlapInTheRangeAndLieWhereTheGatherPutsThem) {
  for (const Case& c : cases()) {
    const ParameterTable table(make_model(c.model));
    const Placement placement(table, c.mesh);
    for (int shard = 0; shard < c.mesh.shard; ++shard) {
      std::set<std::pair<int, std::int64_t>> taken;  // {unit, element of the range}
      for (const Fragment& f : placement.fragments(shard)) {
        const UnitPlacement& unit = placement.unit(f.unit);
        const auto& order = table.units()[f.unit].parameters;
        const auto position = std::find(order.begin(), order.end(), f.parameter) - order.begin();
        // The gather lays rank s's range at s x range.
        EXPECT_EQ(shard * unit.range + f.offset_in_range, unit.offset[position] + f.begin);
        EXPECT_LE(f.offset_in_range + f.count, unit.range);
        for (std::int64_t i = 0; i < f.count; ++i) ASSERT_TRUE(taken.emplace(f.unit, f.offset_in_range + i).second);
      }
    }
  }
}

TEST(Placement, RangesAreEqualAlignedAndNoLargerThanTheCutNeeds) {
  for (const Case& c : cases()) {
    const ParameterTable table(make_model(c.model));
    const Placement placement(table, c.mesh);
    for (std::size_t u = 0; u < table.units().size(); ++u) {
      const UnitPlacement& unit = placement.unit(static_cast<int>(u));
      EXPECT_EQ(unit.padded, unit.range * c.mesh.shard);
      EXPECT_GE(unit.padded, unit.elements);
      EXPECT_EQ(unit.range % 16, 0);
      const bool whole = unit.expert_stride > 0 && unit.range % unit.expert_stride == 0;
      const std::int64_t cut = whole ? unit.expert_stride : 16;
      EXPECT_LT((unit.range - cut) * c.mesh.shard, unit.elements) << "a smaller range would do";
      for (const std::int64_t offset : unit.offset) EXPECT_EQ(offset % 16, 0);
    }
  }
}

TEST(Placement, ExpertsStayWholeWhileThereAreAtLeastAsManyAsShards) {
  const ParameterTable table(make_model({.experts = 5}));
  for (const int shard : {2, 3, 4, 5}) {
    const Placement placement(table, {1, shard});
    for (int s = 0; s < shard; ++s) {
      for (const Fragment& f : placement.fragments(s)) {
        const Parameter& parameter = table.parameters()[f.parameter];
        if (parameter.kind == ParameterKind::expert) {
          EXPECT_EQ(f.count, parameter.shape.elements()) << parameter.name << " is split over " << shard << " shards";
        }
      }
    }
  }
  const Placement fine(table, {1, 8});  // more shards than experts: cut finer, so that all take part
  const auto last = fine.fragments(7);
  EXPECT_TRUE(std::any_of(last.begin(), last.end(), [&](const Fragment& f) {
    return table.parameters()[f.parameter].kind == ParameterKind::expert;
  }));
}

TEST(Placement, ExpertsFollowEachOtherByOneStride) {
  const ParameterTable table(make_model({.experts = 5, .hidden = 7, .width = 3}));
  const Placement placement(table, {1, 2});
  for (std::size_t u = 0; u < table.units().size(); ++u) {
    const UnitPlacement& unit = placement.unit(static_cast<int>(u));
    if (table.units()[u].kind != UnitKind::experts) {
      EXPECT_EQ(unit.expert_stride, 0);
      continue;
    }
    ASSERT_EQ(unit.offset.size(), 15u);
    EXPECT_EQ(unit.expert_stride, 3 * 32);  // 21 elements each, aligned to 16
    for (std::size_t i = 3; i < 15; ++i) EXPECT_EQ(unit.offset[i], unit.offset[i - 3] + unit.expert_stride);
  }
}

TEST(Placement, ARankMayOwnNothingButPadding) {
  const ParameterTable table(make_model({.experts = 0, .hidden = 4, .vocabulary = 2}));
  const Placement placement(table, {1, 64});
  EXPECT_TRUE(placement.fragments(63).empty());
  EXPECT_NE(placement.table().find("padding only"), std::string::npos);
}

TEST(Placement, HashIsTheSameForEqualInputsAndFollowsMeshAndModel) {
  const ParameterTable table(make_model({})), same(make_model({})), other(make_model({.hidden = 9}));
  const std::string hash = Placement(table, {1, 4}).hash();
  EXPECT_EQ(hash.size(), 32u);
  EXPECT_EQ(hash, Placement(same, {1, 4}).hash());
  std::set<std::string> hashes = {hash, Placement(table, {1, 2}).hash(), Placement(table, {2, 4}).hash(),
                                  Placement(other, {1, 4}).hash()};
  EXPECT_EQ(hashes.size(), 4u);
}

TEST(Placement, TableHasOneShortLinePerUnit) {
  const ParameterTable table(make_model({.layers = 1, .experts = 5}));
  const std::string text = Placement(table, {2, 4}).table();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), static_cast<long>(table.units().size()) + 2) << text;
  EXPECT_NE(text.find("0-1: 2 whole experts; 2: 1 whole expert; 3: padding only"), std::string::npos) << text;
  EXPECT_NE(text.find("placement on replicate 2 x shard 4: 4 units"), std::string::npos) << text;
}

TEST(Placement, TableOfAThousandUnitsOnManyShardsStaysReadable) {
  const ParameterTable table(make_model({.layers = 500, .experts = 384, .hidden = 2, .width = 1}));
  const std::string text = Placement(table, {4, 384}).table();
  std::size_t longest = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    longest = std::max(longest, end - at);
    at = end + 1;
  }
  EXPECT_LT(longest, 160u);
}

}  // namespace
}  // namespace ananke
