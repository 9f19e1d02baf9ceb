// The ranks seen along named axes. Pure functions of (shape, rank).
//   dense parameters:  replicate x shard
//   experts:           replicate x expert_shard x expert,  shard = expert_shard x expert
// World rank = replicate x shards + shard,  shard = expert_shard x experts + expert: the expert axis is innermost, so
// that ranks which exchange tokens are neighbours. Every rank is a data-parallel rank with rows of its own.
#pragma once

#include <string>
#include <vector>

namespace ananke {

class Mesh;  // proto/ananke/mesh.proto

struct MeshShape {
  int replicate = 1;
  int shard = 1;
  int expert = 1;  // divides shard
  int expert_shard() const noexcept { return shard / expert; }
  int ranks() const noexcept { return replicate * shard; }
  bool operator==(const MeshShape&) const = default;
};

struct MeshCoordinates {
  int replicate = 0;
  int shard = 0;
  int expert_shard = 0;  // shard / expert axis
  int expert = 0;        // shard % expert axis
};

// Of a resolved job (every size filled in).
MeshShape mesh_of(const Mesh& mesh);

MeshCoordinates coordinates(const MeshShape& mesh, int rank);
// World ranks, ascending, that share every other coordinate with `rank`.
std::vector<int> shard_group(const MeshShape& mesh, int rank);
std::vector<int> replicate_group(const MeshShape& mesh, int rank);
// Within the shard group: the ranks that exchange tokens, and those that hold parts of the same experts.
std::vector<int> expert_group(const MeshShape& mesh, int rank);
std::vector<int> expert_shard_group(const MeshShape& mesh, int rank);
// The ranks of the shard group on the same node, `nodes` being every world rank's node name; `rank` alone where the
// nodes of its shard group have unequal numbers of its ranks.
std::vector<int> node_group(const MeshShape& mesh, int rank, const std::vector<std::string>& nodes);

// "replicate 2 x shard 4", "replicate 2 x shard 4 (expert_shard 2 x expert 2)"
std::string to_string(const MeshShape& mesh);

}  // namespace ananke
