// For every parameter which rank owns which part. Computed from the parameter table and the mesh alone, so every rank
// has the same one (its hash is compared at start).
//
// A unit is one flat array: its parameters in table order, each at an offset aligned to 16 elements. The array is cut
// into `shard` equal contiguous ranges, so that an all-gather's output *is* the parameters' storage. The unit of
// cutting is 16 elements for dense units; for expert units it is one whole expert as long as shard <= experts (then no
// expert is ever split), else 16 elements as well. The end is padded with zeros. A rank may own nothing but padding.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/comm/mesh.h"
#include "runtime/model/parameter_table.h"

namespace ananke {

struct UnitPlacement {
  std::int64_t elements = 0;         // of the flat array without the padding at its end
  std::int64_t range = 0;            // elements every shard rank owns: [shard * range, (shard + 1) * range)
  std::int64_t padded = 0;           // range x shard
  std::vector<std::int64_t> offset;  // of each parameter of the unit (same order as Unit::parameters)
  std::int64_t expert_stride = 0;    // elements from an expert's gate to the next one's; 0 for dense units
};

// The part of one parameter that lies inside one rank's range of its unit.
struct Fragment {
  int parameter = 0;              // index into the table
  int unit = 0;
  std::int64_t begin = 0;         // first element within the parameter, row-major
  std::int64_t count = 0;         // > 0
  std::int64_t offset_in_range = 0;  // where it lies inside the owner's range
};

class Placement {
 public:
  Placement(const ParameterTable& table, const MeshShape& mesh);
  const MeshShape& mesh() const noexcept { return mesh_; }
  const UnitPlacement& unit(int unit) const { return units_[static_cast<std::size_t>(unit)]; }
  // What shard coordinate `shard` owns, in unit and parameter order. The same on every replica.
  std::vector<Fragment> fragments(int shard) const;
  std::string hash() const;   // 32 hex digits
  std::string table() const;  // for people

 private:
  const ParameterTable& table_;
  MeshShape mesh_;
  std::vector<UnitPlacement> units_;
};

}  // namespace ananke
