#include "runtime/comm/mesh.h"

#include <map>

#include "ananke/mesh.pb.h"
#include "runtime/base/error.h"

namespace ananke {
namespace {

// `count` ranks from `first`, `step` apart.
std::vector<int> ranks_from(int first, int step, int count) {
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(first + i * step);
  return ranks;
}

}  // namespace

MeshShape mesh_of(const Mesh& mesh) {
  return {static_cast<int>(mesh.replicate()), static_cast<int>(mesh.shard()), static_cast<int>(mesh.expert())};
}

MeshCoordinates coordinates(const MeshShape& mesh, int rank) {
  ANANKE_CHECK(mesh.expert >= 1 && mesh.shard % mesh.expert == 0, "mesh {} whose expert axis does not divide shard",
               to_string(mesh));
  ANANKE_CHECK(rank >= 0 && rank < mesh.ranks(), "rank {} in mesh {}", rank, to_string(mesh));
  const int shard = rank % mesh.shard;
  return {rank / mesh.shard, shard, shard / mesh.expert, shard % mesh.expert};
}

std::vector<int> shard_group(const MeshShape& mesh, int rank) {
  return ranks_from(rank - coordinates(mesh, rank).shard, 1, mesh.shard);
}

std::vector<int> replicate_group(const MeshShape& mesh, int rank) {
  return ranks_from(coordinates(mesh, rank).shard, mesh.shard, mesh.replicate);
}

std::vector<int> expert_group(const MeshShape& mesh, int rank) {
  return ranks_from(rank - coordinates(mesh, rank).expert, 1, mesh.expert);
}

std::vector<int> expert_shard_group(const MeshShape& mesh, int rank) {
  const int first = rank - coordinates(mesh, rank).expert_shard * mesh.expert;
  return ranks_from(first, mesh.expert, mesh.expert_shard());
}

std::vector<int> node_group(const MeshShape& mesh, int rank, const std::vector<std::string>& nodes) {
  ANANKE_CHECK(static_cast<int>(nodes.size()) == mesh.ranks(), "{} node names for mesh {}", nodes.size(),
               to_string(mesh));
  std::map<std::string, std::vector<int>> groups;
  for (const int peer : shard_group(mesh, rank)) groups[nodes[static_cast<std::size_t>(peer)]].push_back(peer);
  const std::vector<int>& mine = groups.at(nodes[static_cast<std::size_t>(rank)]);
  for (const auto& [node, ranks] : groups) {
    if (ranks.size() != mine.size()) return {rank};
  }
  return mine;
}

std::string to_string(const MeshShape& mesh) {
  std::string text = fmt::format("replicate {} x shard {}", mesh.replicate, mesh.shard);
  if (mesh.expert > 1) text += fmt::format(" (expert_shard {} x expert {})", mesh.expert_shard(), mesh.expert);
  return text;
}

}  // namespace ananke
