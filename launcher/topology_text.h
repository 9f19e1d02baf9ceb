// A rank map as people see it: in text, and as a drawing.
#pragma once

#include <string>

#include "runtime/topology/places.h"
#include "runtime/topology/rank_map.h"

namespace ananke {

// The mesh, the edges of every axis by how far they go, where every replica is, and the racks with one letter for each
// node: its replica, or '.' for a node that the map has left over.
std::string topology_text(const RankMap& map, const std::string& where, const std::string& source);

// Of nodes in the order of their ranks: "0-3 node a", a line each.
std::string rank_list(const RankMap& map);

// The same as a drawing in SVG: groups as frames, racks as rows of nodes coloured by replica, and the edges between
// groups of the shard axis as lines; a table of all axes below.
std::string topology_svg(const RankMap& map, const std::string& where, const std::string& source);

}  // namespace ananke
