#include "runtime/engine/resident_activations.h"

#include "runtime/base/error.h"

namespace ananke {
namespace {

std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

std::vector<PlanLine> ResidentActivations::plan(std::int64_t inputs, std::size_t bytes) const {
  return {{"block inputs", Place::device, static_cast<std::uint64_t>(inputs) * aligned(bytes)}};
}

void ResidentActivations::start(Device& device, int blocks, int microbatches, std::size_t bytes) {
  microbatches_ = microbatches;
  stride_ = aligned(bytes);
  memory_ = device.memory().allocate(
      static_cast<std::size_t>(blocks) * static_cast<std::size_t>(microbatches) * stride_, "block inputs");
}

void* ResidentActivations::place(int block, int microbatch) {
  const auto index =
      static_cast<std::size_t>(block) * static_cast<std::size_t>(microbatches_) + static_cast<std::size_t>(microbatch);
  ANANKE_CHECK(microbatch >= 0 && microbatch < microbatches_ && (index + 1) * stride_ <= memory_.bytes(),
               "input of block {}, microbatch {}", block, microbatch);
  return static_cast<std::byte*>(memory_.data()) + index * stride_;
}

void ResidentActivations::keep(int, int) {}
void* ResidentActivations::take(int block, int microbatch) { return place(block, microbatch); }
void ResidentActivations::forget(int, int) {}

}  // namespace ananke
