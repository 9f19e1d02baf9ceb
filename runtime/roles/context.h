// What a plugin is told when it is built. Layout is a pure function of this: a plugin never talks to peers here and
// touches no device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/comm/mesh.h"

namespace ananke {

class Job;
class Site;

struct RoleContext {
  const Job& job;    // resolved; outlives the plugin
  const Site& site;  // likewise
  MeshShape mesh;
  int rank = 0;
  int node_ranks = 1;  // workers on this rank's node: they share its CPUs
};

enum class Place { device, host };

// One line of the memory plan, printed before anything is allocated.
struct PlanLine {
  std::string purpose;
  Place place = Place::device;
  std::uint64_t bytes = 0;
};

}  // namespace ananke
