#include "plugins/fsdp/slots.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/runtime/comm/small_model.h"

namespace ananke::fsdp {
namespace {

using testing::make_model;

bool overlap(const Slots& slots, const Placement& placement, int a, int b) {
  const std::int64_t end_a = slots.offset[a] + placement.largest_padded(a);
  const std::int64_t end_b = slots.offset[b] + placement.largest_padded(b);
  return slots.offset[a] < end_b && slots.offset[b] < end_a;
}

TEST(Slots, BlocksWithinTheDistanceNeverShareMemory) {
  for (const bool tied : {false, true}) {
    const ParameterTable table(make_model({.layers = 7, .sparse_step = 2, .tied = tied}));
    const Placement placement(table, {1, 3});
    const int blocks = static_cast<int>(table.blocks().size());
    for (const int distance : {0, 1, 2, 3, 100}) {
      const Slots slots = assign_slots(table, placement, distance);
      for (int a = 0; a < blocks; ++a) {
        for (int b = a; b < std::min(blocks, a + distance + 1); ++b) {
          for (const int u : table.blocks()[a].units) {
            for (const int v : table.blocks()[b].units) {
              EXPECT_TRUE(u == v || !overlap(slots, placement, u, v))
                  << u << " and " << v << " at distance " << distance;
            }
          }
        }
      }
    }
  }
}

TEST(Slots, OverlapsAreListedOnBothSidesAndHomesAreAlignedInsideTheRegion) {
  const ParameterTable table(make_model({.layers = 6}));
  const Placement placement(table, {1, 2});
  const Slots slots = assign_slots(table, placement, 1);
  const int units = static_cast<int>(table.units().size());
  for (int u = 0; u < units; ++u) {
    EXPECT_EQ(slots.offset[u] % 64, 0);
    EXPECT_LE(slots.offset[u] + placement.largest_padded(u), slots.elements);
    for (int v = 0; v < units; ++v) {
      const auto& list = slots.overlaps[u];
      EXPECT_EQ(u != v && overlap(slots, placement, u, v), std::find(list.begin(), list.end(), v) != list.end());
    }
  }
}

TEST(Slots, EqualLayersTakeTurnsSoThatTheRegionDoesNotGrowWithDepth) {
  std::vector<std::int64_t> sizes;
  for (const unsigned layers : {4u, 8u, 64u}) {
    const ParameterTable table(make_model({.layers = layers}));
    sizes.push_back(assign_slots(table, Placement(table, {1, 2}), 2).elements);
  }
  EXPECT_EQ(sizes[0], sizes[1]);
  EXPECT_EQ(sizes[1], sizes[2]);
}

TEST(Slots, AtFullDistanceEveryUnitHasMemoryOfItsOwn) {
  const ParameterTable table(make_model({.layers = 5, .tied = true}));
  const Slots slots = assign_slots(table, Placement(table, {1, 4}), static_cast<int>(table.blocks().size()));
  for (const auto& overlaps : slots.overlaps) EXPECT_TRUE(overlaps.empty());
}

TEST(Slots, NarrowHomesAreThereForEveryUnitAndKeepTheSegmentsApart) {
  const ParameterTable table(make_model({.layers = 3, .experts = 3}));
  for (const MeshShape& mesh : {MeshShape{1, 1}, {1, 3}, {1, 4, 2}, {1, 4, 4}}) {
    const Placement placement(table, mesh);
    const Slots slots = assign_slots(table, placement, 1, DType::bf16);
    std::vector<float> region(static_cast<std::size_t>(slots.elements));
    const TensorView all = view_of(region.data(), {slots.elements});
    for (int unit = 0; unit < static_cast<int>(table.units().size()); ++unit) {
      for (int rank = 0; rank < mesh.ranks(); ++rank) {
        const UnitPlacement& place = placement.unit(unit, coordinates(mesh, rank));
        const TensorView home = all.slice(slots.offset[unit], home_elements(place, DType::bf16));
        const SegmentViews views = segments_in(home, place, DType::bf16);
        const TensorView &wire = views[UnitSegment::wire], &fp32 = views[UnitSegment::fp32];
        EXPECT_EQ(wire.dtype, DType::bf16);
        EXPECT_EQ(fp32.dtype, DType::f32);
        EXPECT_EQ(wire.elements(), place.segment(UnitSegment::wire).padded);
        EXPECT_EQ(fp32.elements(), place.segment(UnitSegment::fp32).padded);
        EXPECT_LE(static_cast<std::byte*>(wire.data) + wire.bytes(), static_cast<std::byte*>(fp32.data));
        EXPECT_EQ(static_cast<std::byte*>(fp32.data) + fp32.bytes(), static_cast<std::byte*>(home.data) + home.bytes());
      }
    }
  }
}

}  // namespace
}  // namespace ananke::fsdp
