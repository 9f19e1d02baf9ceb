// Does a job fit? Compares what the ranks of every node need with what their node has, all ranks of a node together:
// per NUMA node by the ranks that are bound to it, per control group by the ranks that are in it, and per device. Pure:
// every rank judges the same records and comes to the same verdict.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/memory/room.h"

namespace ananke {

// One place that is too small.
struct Shortage {
  std::string node = {};
  std::vector<std::uint32_t> numa = {};  // NUMA nodes that the ranks share; empty: a control group or a device
  const CgroupLimit* cgroup = nullptr;
  std::string device = {};
  std::vector<std::uint32_t> ranks = {};
  std::uint64_t need = 0, have = 0;
};

struct AdmissionVerdict {
  std::vector<Shortage> shortages;   // by node, smallest places first
  std::vector<std::string> unknown;  // what could not be judged, a sentence each: no reason to believe that it fits
  std::vector<std::string> warnings;
  bool fits() const { return shortages.empty() && unknown.empty(); }
  bool host_fits() const;  // but perhaps not the devices
};

// `needs`: of all ranks, the first one of each node with the node's memory. The verdict points into them.
AdmissionVerdict judge_admission(std::span<const RankNeed> needs, const RoomOptions& options);

// What to tell where it does not fit: every shortage with what holds the rest of the place and what to do, and a ticket
// where memory is missing that nobody accounts for. Of many nodes the first three in full.
std::string refusal_text(const AdmissionVerdict& verdict, std::span<const RankNeed> needs, const RoomOptions& options);

// The largest of the fractions k / layers not above `configured` that `fits`; less offload never needs more of the
// host, so it is searched by halving. Nothing where even 0 does not.
std::optional<double> largest_fraction(double configured, int layers, const std::function<bool(double)>& fits);

}  // namespace ananke
