// For every parameter which rank owns which part. Computed from the parameter table and the mesh alone, so every rank
// has the same one (its hash is compared at start).
//
// A unit is cut over the ranks of one axis: dense units over `shard`; the experts of one expert coordinate over
// `expert_shard` (expert e of E lives on coordinate floor(e x expert / E), so coordinates may hold different numbers,
// also none). A unit has two segments, each a flat array of its parameters in table order, each parameter at an offset
// aligned to 16 elements, and each cut into equal contiguous ranges, so that an all-gather's output *is* the
// parameters' storage:
//   wire   matrices, embedding, head, experts: travels in the format that the parameters plugin is told
//   fp32   norms, the router, biases: few elements, always gathered and reduced in f32
// The unit of cutting is 16 elements; for experts it is one whole expert as long as a coordinate has at least as many
// as it has ranks (then none is ever split). The end of a segment is padded with zeros. A rank may own nothing but
// padding, or nothing.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/mesh.h"
#include "runtime/model/parameter_table.h"

namespace ananke {

enum class UnitSegment { wire, fp32 };
inline constexpr std::size_t segment_count = 2;
UnitSegment segment_of(ParameterKind kind) noexcept;
inline std::size_t index_of(UnitSegment segment) noexcept { return static_cast<std::size_t>(segment); }

// Expert e of `experts` lives on coordinate floor(e x axis / experts) of an expert axis of that size.
struct ExpertRange {
  int first = 0, count = 0;
};
ExpertRange experts_of(int coordinate, int axis, int experts);

// One segment of a unit. Sizes in elements.
struct SegmentPlacement {
  std::int64_t elements = 0;  // of the flat array without the padding at its end
  std::int64_t range = 0;     // every rank owns [i x range, (i + 1) x range), i its coordinate on the axis of the cut
  std::int64_t padded = 0;    // range x ranks
};

// A unit as one rank sees it: units of experts differ by the expert coordinate. A rank's ranges of the two segments lie
// one behind the other (`range()` elements), as do the gathered segments (`padded()` elements).
struct UnitPlacement {
  int ranks = 1;                                         // the unit is cut over so many
  std::array<SegmentPlacement, segment_count> segments;  // by index_of(UnitSegment)
  // What is placed is parameters[first_parameter + i] of the unit, for every i of `offset`: all of a dense unit; of
  // experts those of the coordinate.
  std::size_t first_parameter = 0;
  std::vector<std::int64_t> offset;  // within the parameter's segment
  std::int64_t expert_stride = 0;    // elements from an expert's gate to the next one's; 0 for dense units
  ExpertRange experts;               // that live here; none in dense units

  const SegmentPlacement& segment(UnitSegment which) const { return segments[index_of(which)]; }
  std::int64_t elements() const { return segments[0].elements + segments[1].elements; }
  std::int64_t range() const { return segments[0].range + segments[1].range; }
  std::int64_t padded() const { return segments[0].padded + segments[1].padded; }
  // Where a segment begins in a rank's range, and in the gathered unit.
  std::int64_t range_begin(UnitSegment which) const { return which == UnitSegment::wire ? 0 : segments[0].range; }
  std::int64_t padded_begin(UnitSegment which) const { return which == UnitSegment::wire ? 0 : segments[0].padded; }
};

// The part of one parameter that lies inside one rank's range of its unit.
struct Fragment {
  int parameter = 0;  // index into the table
  int unit = 0;
  std::int64_t begin = 0;            // first element within the parameter, row-major
  std::int64_t count = 0;            // > 0
  std::int64_t offset_in_range = 0;  // where it lies inside the owner's range() of the unit
};

// Fragments of one unit that lie one behind the other in their owner's range, as one.
struct FragmentRun {
  int unit = 0;
  std::int64_t begin = 0;  // within the owner's range() of the unit
  std::int64_t count = 0;
};
std::vector<FragmentRun> runs_of(std::span<const Fragment> fragments);

class Placement {
 public:
  // `table` outlives the placement.
  Placement(const ParameterTable& table, const MeshShape& mesh);
  const MeshShape& mesh() const noexcept { return mesh_; }
  const UnitPlacement& unit(int unit, const MeshCoordinates& at) const;
  // Of a unit that is placed alike on all ranks: a dense one, or any where the expert axis is 1.
  const UnitPlacement& unit(int unit) const;
  // The most that any rank has of the unit's padded(): what is reserved everywhere, so that all ranks lay out alike.
  std::int64_t largest_padded(int unit) const;
  // Position on the axis that the unit is cut over.
  int part(int unit, const MeshCoordinates& at) const;
  // What world rank `rank` owns, in unit and parameter order. The same on every replica; over the ranks of one replica
  // every element of every parameter has exactly one owner.
  std::vector<Fragment> fragments(int rank) const;
  std::string hash() const;   // 32 hex digits
  std::string table() const;  // for people

 private:
  const std::vector<UnitPlacement>& places(int unit) const;
  const ParameterTable& table_;
  MeshShape mesh_;
  std::vector<std::vector<UnitPlacement>> units_;  // one for all, or one per expert coordinate
};

}  // namespace ananke
