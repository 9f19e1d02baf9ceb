// Role "activations": keeps every block's input from its forward to its backward. Built-in: resident.
//
//   plan ─ start ─ per step:  begin
//     forward of a block      place(next block)   its output is written there, while place(block) is read
//                             keep(block)         or forget(block), where no backward follows (evaluation)
//     the head                place(head)
//     backward of a block     take(block), forget(block)
//
// All calls come from one host thread and only put work on streams. Blocks are those of the parameter table; the first,
// the embedding, has no input that is kept. A microbatch is one of those in flight: its number in the step modulo
// their number.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/model/schedule.h"
#include "runtime/operators/operator_set.h"
#include "runtime/roles/context.h"

namespace ananke {

// Of this rank, since start.
struct ActivationTraffic {
  std::uint64_t bytes_out = 0, bytes_in = 0;  // to the host, and back
  // That the copies took, and that the compute stream waited for them; of all steps whose end the host has seen.
  // Nothing where the backend measures no time.
  std::optional<double> copy_seconds, stall_seconds;
};

class Activations {
 public:
  static constexpr const char* role = "activations";
  virtual ~Activations() = default;
  // `inputs`: how many (block, microbatch) pairs are kept at once, of `bytes` each. Pure.
  virtual std::vector<PlanLine> plan(std::int64_t inputs, std::size_t bytes) const = 0;
  // The fraction of layers whose inputs it keeps on the host: what its config says, or less where the resolved job has
  // an offload_fraction, by which plan() and start() then go. 0: it keeps nothing there. Pure.
  virtual double offload_fraction() const { return 0; }
  // Whether what it keeps there comes back rounded, so that results depend on that fraction. Pure.
  virtual bool rounds() const { return false; }
  // Before start: what the backend computes with. Outlives the role.
  virtual void use(const OperatorSet& /*operators*/) {}
  virtual void start(Device& device, int blocks, int microbatches, std::size_t bytes) = 0;
  // The items of the step that begins; outlives it.
  virtual void begin(const Schedule& /*schedule*/) {}
  // Where the block writes its input for (block, microbatch); valid on the compute stream until kept.
  virtual void* place(int block, int microbatch) = 0;
  // The input is complete on the compute stream; from now on this role owns it.
  virtual void keep(int block, int microbatch) = 0;
  // Back on the compute stream, until the next take of the same pair's memory or forget().
  virtual void* take(int block, int microbatch) = 0;
  // It is not wanted any more: after a take, or without one instead of keep().
  virtual void forget(int block, int microbatch) = 0;
  virtual ActivationTraffic traffic() { return {}; }
};

}  // namespace ananke
