// Bytes that a role has received from other ranks, for the step record: counted where they are asked for, by host
// arithmetic, so they are the same in every run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/device/stream.h"

namespace ananke {

enum class Direction { gather, reduce, dispatch, combine, dispatch_backward, combine_backward, redistribute };
const char* name_of(Direction direction) noexcept;

struct TrafficLine {
  Resource resource = Resource::network;  // whose stream carries it
  std::string axis;                       // of the mesh: "shard", "replicate", "expert_shard", "expert", "node"
  int unit = -1;                          // index into ParameterTable::units(); -1: no unit in particular
  Direction direction = Direction::gather;
  std::uint64_t bytes = 0;  // received by this rank since start
};

// One line per (resource, axis, unit, direction). A role that is asked again gives the same lines with grown bytes.
using Traffic = std::vector<TrafficLine>;

std::uint64_t bytes_of(const Traffic& traffic, Direction direction) noexcept;

}  // namespace ananke
