// Role "activations": keeps every block's input from its forward to its backward. Built-in: resident.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/roles/context.h"

namespace ananke {

class Activations {
 public:
  static constexpr const char* role = "activations";
  virtual ~Activations() = default;
  // `inputs`: how many (block, microbatch) pairs are kept at once, of `bytes` each. Pure.
  virtual std::vector<PlanLine> plan(std::int64_t inputs, std::size_t bytes) const = 0;
  virtual void start(Device& device, int blocks, int microbatches, std::size_t bytes) = 0;
  // Where the block writes its input for (block, microbatch); valid on the compute stream until kept.
  virtual void* place(int block, int microbatch) = 0;
  // The input is complete on the compute stream; from now on this role owns it.
  virtual void keep(int block, int microbatch) = 0;
  // Back on the compute stream, until the next take of the same pair's memory or forget().
  virtual void* take(int block, int microbatch) = 0;
  virtual void forget(int block, int microbatch) = 0;
};

}  // namespace ananke
