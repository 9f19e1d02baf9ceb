// The ranks seen along named axes: replicate (outermost) x shard. Pure functions of (shape, rank).
#pragma once

#include <string>
#include <vector>

namespace ananke {

struct MeshShape {
  int replicate = 1;
  int shard = 1;
  int ranks() const noexcept { return replicate * shard; }
};

struct MeshCoordinates {
  int replicate = 0;
  int shard = 0;
};

MeshCoordinates coordinates(const MeshShape& mesh, int rank);
// World ranks, ascending, that share every other coordinate with `rank`.
std::vector<int> shard_group(const MeshShape& mesh, int rank);
std::vector<int> replicate_group(const MeshShape& mesh, int rank);
std::string to_string(const MeshShape& mesh);  // "replicate 2 x shard 4"

}  // namespace ananke
