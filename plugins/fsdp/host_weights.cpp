#include "plugins/fsdp/host_weights.h"

namespace ananke::fsdp {

HostWeights::HostWeights(Device& device, const TensorView& region)
    : device_(device), in_(device.stream(Resource::host_to_device)) {
  const std::int64_t elements = region.elements() / slot_count;
  std::int64_t begin = 0;
  for (Slot& slot : slots_) {
    slot = {region.slice(begin, elements), device.make_event(), device.make_event()};
    begin += elements;
  }
}

TensorView HostWeights::bring(Stream& user, const TensorView& values) {
  Slot& slot = current();
  const TensorView there = slot.memory.slice(0, values.elements());
  in_.wait(*slot.used);
  copy(values, there);
  in_.record(*slot.arrived);
  user.wait(*slot.arrived);
  return there;
}

void HostWeights::done(Stream& user) {
  user.record(*current().used);
  ++next_;
}

void HostWeights::copy(const TensorView& values, const TensorView& to) {
  if (values.elements() > 0) device_.copy(in_, to.data, values.data, values.bytes());
}

}  // namespace ananke::fsdp
