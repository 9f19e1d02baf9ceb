// What a plugin is told when it is built, and when it starts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/comm/mesh.h"

namespace ananke {

class Backend;
class Communicator;
class Job;
class ParameterTable;
class Placement;
class Site;

// At construction. Layout is a pure function of this: a plugin never talks to peers here and touches no device.
struct RoleContext {
  const Job& job;    // resolved; outlives the plugin
  const Site& site;  // likewise
  MeshShape mesh;
  int rank = 0;
  int node_ranks = 1;     // workers on this rank's node: they share its CPUs
  std::string node = {};  // its name; ranks with the same one share a node
  int local_rank = -1;    // among the workers of this rank's node; -1: unknown, ranks fill nodes in order
  bool dry = false;       // nothing will be started: sizes and checks are asked for, and no device may be touched
};

// Everything a role may use from its start on. All outlive the role. Communicators are made once and shared: each
// belongs to one stream, that of the resource named here.
struct StartContext {
  Backend& backend;
  const ParameterTable& table;
  const Placement& placement;
  MeshCoordinates at;          // of this rank
  Communicator& shard;         // network: ranks that hold the parts of one copy of a dense unit
  Communicator& replicate;     // network: ranks that hold the same part
  Communicator& expert_shard;  // network: ranks that hold the parts of one coordinate's experts; may be `shard` itself
  Communicator& expert;        // nvlink: ranks that exchange tokens
  Communicator& world;         // network: all
  Communicator& node;  // nvlink: the shard axis's ranks on this node; of size 1 where nodes have unequal numbers
};

enum class Place { device, host };

// From when to when memory is taken. run: from the start to the end. use: from the first use in a step, which may be a
// late one, to the end. start: given back before the first step.
enum class Lifetime { run, use, start };

// One line of the memory plan, printed before anything is allocated.
struct PlanLine {
  std::string purpose;
  Place place = Place::device;
  std::uint64_t bytes = 0;
  Lifetime lifetime = Lifetime::run;
};

}  // namespace ananke
