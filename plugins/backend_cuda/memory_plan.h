// Memory that a process and its GPU take besides the pieces of the arenas. Estimates, since the driver and the
// libraries do not say beforehand; memory_plan.cpp has them with their sources.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/roles/context.h"

namespace ananke::cuda {

// Of what the driver does not tell apart.
inline constexpr const char* context_purpose = "CUDA context, kernels, NCCL";
inline constexpr const char* ends_purpose = "unused ends of blocks";

struct PlannedDevice {
  bool eager_modules = true;
  int communicators = 0;  // of two ranks or more
  std::uint64_t memory_block = 0, pinned_block = 0;
};
std::vector<PlanLine> device_overheads(const PlannedDevice& device);

}  // namespace ananke::cuda
