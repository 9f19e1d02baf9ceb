#include "runtime/comm/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <sstream>
#include <tuple>

#include "runtime/base/error.h"
#include "tests/runtime/comm/small_model.h"

namespace ananke {
namespace {

using testing::make_model;

std::int64_t experts_in(const ParameterTable& table, int layer) {
  return std::count_if(table.parameters().begin(), table.parameters().end(),
                       [&](const Parameter& p) { return p.layer == layer && p.expert >= 0; }) /
         3;
}

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
  // Expert axes: even, uneven, one expert a rank, coordinates without any, fewer experts than ranks to cut them over.
  for (const auto& [expert_shard, expert] : {std::pair{1, 2}, {2, 2}, {1, 4}, {3, 2}, {2, 3}, {1, 8}, {4, 1}, {8, 5}}) {
    all.push_back({{.experts = 6}, {1, expert_shard * expert, expert}});
    all.push_back(
        {{.layers = 3, .experts = 5, .hidden = 5, .width = 3, .sparse_step = 2}, {2, expert_shard * expert, expert}});
    all.push_back({{.experts = 1, .hidden = 7, .tied = true}, {1, expert_shard * expert, expert}});
  }
  return all;
}

// Throws when an element of a parameter has not exactly one owner, two fragments of a rank overlap in its range, or one
// does not lie where the gather puts it.
void expect_exhaustive(const ParameterTable& table, const Placement& placement) {
  const MeshShape& mesh = placement.mesh();
  for (int replicate = 0; replicate < mesh.replicate; ++replicate) {
    std::vector<std::vector<int>> owners;
    for (const Parameter& parameter : table.parameters()) owners.emplace_back(parameter.shape.elements(), 0);
    for (int shard = 0; shard < mesh.shard; ++shard) {
      const int rank = replicate * mesh.shard + shard;
      const MeshCoordinates at = coordinates(mesh, rank);
      std::vector<std::vector<int>> range;  // of each unit: how often each element of this rank's range is used
      for (int u = 0; u < static_cast<int>(table.units().size()); ++u) {
        range.emplace_back(placement.unit(u, at).range(), 0);
      }
      for (const Fragment& f : placement.fragments(rank)) {
        const Parameter& parameter = table.parameters()[f.parameter];
        const UnitPlacement& unit = placement.unit(f.unit, at);
        ASSERT_GT(f.count, 0);
        ASSERT_EQ(parameter.unit, f.unit);
        ASSERT_LE(f.begin + f.count, parameter.shape.elements());
        ASSERT_LE(f.offset_in_range + f.count, unit.range());
        for (std::int64_t i = 0; i < f.count; ++i) {
          ++owners[f.parameter][f.begin + i];
          ++range[f.unit][f.offset_in_range + i];
        }
        // The gather of a segment lays part p's range at p x range.
        const UnitSegment which = segment_of(parameter.kind);
        const auto& order = table.units()[f.unit].parameters;
        const std::size_t position = std::find(order.begin(), order.end(), f.parameter) - order.begin();
        ASSERT_GE(position, unit.first_parameter);
        ASSERT_EQ(placement.part(f.unit, at) * unit.segment(which).range + f.offset_in_range - unit.range_begin(which),
                  unit.offset[position - unit.first_parameter] + f.begin);
        if (parameter.expert >= 0) {
          ASSERT_EQ(at.expert, parameter.expert * mesh.expert / static_cast<int>(experts_in(table, parameter.layer)));
        }
      }
      for (const auto& used : range) {
        ASSERT_TRUE(std::all_of(used.begin(), used.end(), [](int n) { return n <= 1; })) << "rank " << rank;
      }
    }
    for (std::size_t p = 0; p < owners.size(); ++p) {
      ASSERT_TRUE(std::all_of(owners[p].begin(), owners[p].end(), [](int n) { return n == 1; }))
          << table.parameters()[p].name << " on " << to_string(mesh);
    }
  }
}

TEST(Placement, RefusesAMeshWithoutRanks) {
  const ParameterTable table(make_model({}));
  EXPECT_THROW(Placement(table, MeshShape{1, 0}), Error);
  EXPECT_THROW(Placement(table, MeshShape{0, 1}), Error);
  EXPECT_THROW(Placement(table, MeshShape{1, 4, 0}), Error);
  EXPECT_THROW(Placement(table, MeshShape{1, 4, 3}), Error);
  const Placement placement(table, {1, 2});
  EXPECT_THROW(placement.fragments(2), Error);
  EXPECT_THROW(placement.fragments(-1), Error);
}

TEST(Placement, DealsExpertsInBlocks) {
  EXPECT_THROW(experts_of(2, 2, 5), Error);
  EXPECT_THROW(experts_of(0, 0, 5), Error);
  for (int experts = 0; experts <= 20; ++experts) {
    for (int axis = 1; axis <= 25; ++axis) {
      int next = 0;
      for (int c = 0; c < axis; ++c) {
        const ExpertRange here = experts_of(c, axis, experts);
        EXPECT_EQ(here.first, next);
        for (int e = here.first; e < here.first + here.count; ++e) EXPECT_EQ(e * axis / experts, c);
        next += here.count;
      }
      EXPECT_EQ(next, experts);
    }
  }
}

TEST(Placement, EveryElementHasExactlyOneOwnerAndLiesWhereTheGatherPutsIt) {
  for (const Case& c : cases()) {
    const ParameterTable table(make_model(c.model));
    expect_exhaustive(table, Placement(table, c.mesh));
    ASSERT_FALSE(HasFatalFailure()) << to_string(c.mesh) << ", " << c.model.experts << " experts";
  }
}

// A model of the field: units of more than 2^31 elements, and one parameter; each element owned once.
TEST(Placement, CountsBeyondTwoToThe31) {
  const ParameterTable table(
      make_model({.layers = 1, .experts = 384, .hidden = 6144, .vocabulary = 512'000, .width = 1792}));
  for (const MeshShape& mesh : {MeshShape{1, 1}, {1, 3}, {1, 384}, {1, 384, 4}, {1, 96, 96}}) {
    const Placement placement(table, mesh);
    std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> pieces(table.parameters().size());
    for (int rank = 0; rank < mesh.shard; ++rank) {
      for (const Fragment& f : placement.fragments(rank)) pieces[f.parameter].emplace_back(f.begin, f.count);
    }
    std::int64_t largest = 0, unit = 0;
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      std::int64_t next = 0;
      std::sort(pieces[p].begin(), pieces[p].end());
      for (const auto& [begin, count] : pieces[p]) {
        ASSERT_EQ(begin, next) << table.parameters()[p].name << " on " << to_string(mesh);
        next += count;
      }
      ASSERT_EQ(next, table.parameters()[p].shape.elements()) << table.parameters()[p].name;
      largest = std::max(largest, next);
    }
    for (int u = 0; u < static_cast<int>(table.units().size()); ++u) {
      unit = std::max(unit, placement.largest_padded(u));
    }
    EXPECT_EQ(largest, 512'000LL * 6144);
    EXPECT_GE(unit, largest) << to_string(mesh);
  }
}

TEST(Placement, HoldsForRandomModelsAndMeshes) {
  std::mt19937 random(20261);
  const auto draw = [&](int least, int most) { return static_cast<int>(least + random() % (most - least + 1)); };
  for (int i = 0; i < 400; ++i) {
    const auto size = [&](int least, int most) { return static_cast<unsigned>(draw(least, most)); };
    const testing::SmallModel model{.layers = size(1, 3),
                                    .experts = size(0, 9),
                                    .hidden = size(1, 12),
                                    .vocabulary = size(2, 30),
                                    .width = size(1, 9),
                                    .sparse_step = size(1, 2),
                                    .tied = draw(0, 1) == 1};
    const int expert = draw(1, 6);
    const MeshShape mesh{draw(1, 2), draw(1, 6) * expert, expert};
    const ParameterTable table(make_model(model));
    expect_exhaustive(table, Placement(table, mesh));
    ASSERT_FALSE(HasFatalFailure()) << to_string(mesh) << ", " << model.layers << " layers, " << model.experts
                                    << " experts, hidden " << model.hidden << ", width " << model.width;
  }
}

TEST(Placement, RangesAreEqualAlignedAndNoLargerThanTheCutNeeds) {
  for (const Case& c : cases()) {
    const ParameterTable table(make_model(c.model));
    const Placement placement(table, c.mesh);
    for (int rank = 0; rank < c.mesh.shard; ++rank) {
      for (int u = 0; u < static_cast<int>(table.units().size()); ++u) {
        const UnitPlacement& unit = placement.unit(u, coordinates(c.mesh, rank));
        const bool experts = table.units()[u].kind == UnitKind::experts;
        EXPECT_EQ(unit.ranks, experts ? c.mesh.expert_shard() : c.mesh.shard);
        EXPECT_LE(unit.padded(), placement.largest_padded(u));
        for (const SegmentPlacement& segment : unit.segments) {
          EXPECT_EQ(segment.padded, segment.range * unit.ranks);
          EXPECT_GE(segment.padded, segment.elements);
          EXPECT_EQ(segment.range % 16, 0);
          const std::int64_t cut = experts && unit.experts.count >= unit.ranks ? unit.expert_stride : 16;
          EXPECT_TRUE(segment.range == 0 || (segment.range - cut) * unit.ranks < segment.elements) << "less would do";
        }
        for (const std::int64_t offset : unit.offset) EXPECT_EQ(offset % 16, 0);
      }
    }
  }
}

TEST(Placement, RouterAndNormsFormTheFp32Segment) {
  const ParameterTable table(make_model({.layers = 2, .experts = 5, .tied = true}));
  const Placement placement(table, {1, 4, 2});
  for (int u = 0; u < static_cast<int>(table.units().size()); ++u) {
    const UnitPlacement& unit = placement.unit(u, {});
    std::int64_t wire = 0, fp32 = 0;
    for (std::size_t i = 0; i < unit.offset.size(); ++i) {
      const Parameter& parameter = table.parameters()[table.units()[u].parameters[unit.first_parameter + i]];
      const bool small = parameter.name.find("norm") != std::string::npos ||
                         parameter.name.find("mlp.gate.weight") != std::string::npos;
      EXPECT_EQ(segment_of(parameter.kind), small ? UnitSegment::fp32 : UnitSegment::wire) << parameter.name;
      std::int64_t& end = small ? fp32 : wire;
      EXPECT_GE(unit.offset[i], end) << parameter.name;
      end = unit.offset[i] + parameter.shape.elements();
    }
    EXPECT_EQ(unit.segment(UnitSegment::wire).elements, wire);
    EXPECT_EQ(unit.segment(UnitSegment::fp32).elements, fp32);
  }
  const int head = static_cast<int>(table.units().size()) - 1;
  EXPECT_EQ(placement.unit(head).segment(UnitSegment::wire).padded, 0) << "of a tied head only the norm is left";
}

TEST(Placement, ExpertsLieWholeOnOneCoordinate) {
  const ParameterTable table(make_model({.experts = 6}));
  const Placement placement(table, {1, 8, 4});  // 2, 1, 2, 1 experts by coordinate, over 2 ranks each
  const int unit = table.find("model.layers.0.mlp.experts.0.gate_proj.weight");
  const int experts = table.parameters()[unit].unit;
  EXPECT_THROW(placement.unit(experts), Error) << "it differs by the coordinate";
  for (const auto& [coordinate, first, count] : {std::tuple{0, 0, 2}, {1, 2, 1}, {2, 3, 2}, {3, 5, 1}}) {
    const UnitPlacement& place = placement.unit(experts, coordinates({1, 8, 4}, coordinate));
    EXPECT_EQ(place.experts.first, first);
    EXPECT_EQ(place.experts.count, count);
    EXPECT_EQ(place.first_parameter, static_cast<std::size_t>(3 * first));
    EXPECT_EQ(place.offset.size(), static_cast<std::size_t>(3 * count));
    const std::int64_t range = place.segment(UnitSegment::wire).range;
    EXPECT_EQ(range == place.expert_stride, count == 2) << "two ranks share one expert, and take one each of two";
  }
  const Placement wide(table, {1, 16, 16});  // 10 of 16 coordinates hold none
  const UnitPlacement& none = wide.unit(experts, coordinates({1, 16, 16}, 1));
  EXPECT_EQ(none.experts.count, 0);
  EXPECT_EQ(none.padded(), 0);
  EXPECT_GT(wide.largest_padded(experts), 0);
  for (const Fragment& f : wide.fragments(1)) EXPECT_LT(table.parameters()[f.parameter].expert, 0);
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
  std::set<std::string> hashes = {hash,
                                  Placement(table, {1, 2}).hash(),
                                  Placement(table, {2, 4}).hash(),
                                  Placement(other, {1, 4}).hash(),
                                  Placement(table, {1, 4, 2}).hash(),
                                  Placement(table, {1, 4, 4}).hash()};
  EXPECT_EQ(hashes.size(), 6u);
}

TEST(Placement, TableHasOneShortLinePerUnit) {
  const ParameterTable table(make_model({.layers = 1, .experts = 5}));
  const std::string text = Placement(table, {2, 4}).table();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), static_cast<long>(table.units().size()) + 2) << text;
  EXPECT_NE(text.find("0-1: 2 whole experts; 2: 1 whole expert; 3: padding only"), std::string::npos) << text;
  EXPECT_NE(text.find("placement on replicate 2 x shard 4: 4 units"), std::string::npos) << text;
  EXPECT_NE(text.find(Placement(table, {2, 4}).hash()), std::string::npos) << text;
  const std::string dealt = Placement(table, {2, 4, 2}).table();
  EXPECT_NE(dealt.find("expert 0: [0: 2 whole experts; 1: 1 whole expert] | expert 1: [0-1: 1 whole expert]"),
            std::string::npos)
      << dealt;
  const std::string wide = Placement(table, {1, 16, 16}).table();
  EXPECT_NE(wide.find("expert 0, 3, 6, 9, ... (5 in all): [0: 1 whole expert] | "
                      "expert 1, 2, 4, 5, ... (11 in all): [0: nothing]"),
            std::string::npos)
      << wide;
}

// What a line says of one coordinate, "0-2: 4,096 + 16; 3: 1 whole expert": elements, or whole experts.
struct Told {
  std::int64_t parts = 0, elements = 0, experts = 0;
};
Told read_parts(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), ','), text.end());
  Told told;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ';');) {
    const std::size_t colon = part.find(':'), dash = part.find('-');
    const std::int64_t first = std::stoll(part);
    const std::int64_t count = dash < colon ? std::stoll(part.substr(dash + 1)) - first + 1 : 1;
    EXPECT_EQ(first, told.parts) << text;
    told.parts += count;
    const std::string owned = part.substr(colon + 2);
    if (owned == "nothing" || owned == "padding only") continue;
    const std::int64_t number = std::stoll(owned);
    const std::size_t plus = owned.find('+');
    const bool experts = owned.find("whole expert") != std::string::npos;
    (experts ? told.experts : told.elements) += count * number;
    if (plus != std::string::npos) told.elements += count * std::stoll(owned.substr(plus + 1));
  }
  return told;
}

void expect_told(const Told& told, const UnitPlacement& place, const std::string& line) {
  EXPECT_EQ(told.parts, place.ranks) << line;
  EXPECT_TRUE(told.elements == 0 || told.experts == 0) << line;
  if (told.experts > 0) {
    EXPECT_EQ(told.experts, place.experts.count) << line;
  } else {
    EXPECT_EQ(told.elements, place.elements()) << line;
  }
}

// Every line adds up: no part is left out, and together the parts are the unit.
TEST(Placement, TableTellsOfEveryElementOnRandomMeshes) {
  std::mt19937 random(7);
  const auto draw = [&](int least, int most) { return static_cast<int>(least + random() % (most - least + 1)); };
  for (int i = 0; i < 100; ++i) {
    const testing::SmallModel model{.layers = 2, .experts = static_cast<unsigned>(draw(1, 12)), .hidden = 16};
    const int expert = draw(1, 9);
    const MeshShape mesh{draw(1, 2), draw(1, 9) * expert, expert};
    const ParameterTable table(make_model(model));
    const Placement placement(table, mesh);
    SCOPED_TRACE(to_string(mesh));
    std::istringstream lines(placement.table());
    std::string line;
    std::getline(lines, line);
    std::getline(lines, line);
    const std::size_t column = line.find("owned by");
    EXPECT_EQ(line.find("expert coordinate") != std::string::npos, expert > 1);
    for (int unit = 0; unit < static_cast<int>(table.units().size()); ++unit) {
      ASSERT_TRUE(std::getline(lines, line));
      std::string owned = line.substr(column);
      if (!owned.starts_with("expert ")) {
        expect_told(read_parts(owned), placement.unit(unit, {}), line);
        continue;
      }
      int coordinates_told = 0;
      for (std::size_t at = 0; at != std::string::npos;) {
        const std::size_t open = owned.find('[', at), close = owned.find(']', at);
        const std::string names = owned.substr(at, open - at);
        const std::size_t all = names.find('(');
        coordinates_told += all == std::string::npos ? 1 + static_cast<int>(std::count(names.begin(), names.end(), ','))
                                                     : std::stoi(names.substr(all + 1));
        const int first = std::stoi(names.substr(names.find("expert ") + 7));
        expect_told(read_parts(owned.substr(open + 1, close - open - 1)),
                    placement.unit(unit, coordinates(mesh, first)), line);
        at = owned.find("expert ", close);
      }
      EXPECT_EQ(coordinates_told, expert) << line;
    }
  }
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
