#include "runtime/comm/mesh.h"

#include "runtime/base/error.h"

namespace ananke {

MeshCoordinates coordinates(const MeshShape& mesh, int rank) {
  ANANKE_CHECK(rank >= 0 && rank < mesh.ranks(), "rank {} in mesh {}", rank, to_string(mesh));
  return {rank / mesh.shard, rank % mesh.shard};
}

std::vector<int> shard_group(const MeshShape& mesh, int rank) {
  const int first = coordinates(mesh, rank).replicate * mesh.shard;
  std::vector<int> ranks;
  for (int i = 0; i < mesh.shard; ++i) ranks.push_back(first + i);
  return ranks;
}

std::vector<int> replicate_group(const MeshShape& mesh, int rank) {
  const int shard = coordinates(mesh, rank).shard;
  std::vector<int> ranks;
  for (int i = 0; i < mesh.replicate; ++i) ranks.push_back(i * mesh.shard + shard);
  return ranks;
}

std::string to_string(const MeshShape& mesh) { return fmt::format("replicate {} x shard {}", mesh.replicate, mesh.shard); }

}  // namespace ananke
