// Masters that lie in host memory, on their way to where they are gathered from: through one of two buffers on the
// device, so that one is filled while the other is sent from.
#pragma once

#include <array>
#include <memory>

#include "runtime/device/device.h"

namespace ananke::fsdp {

class HostWeights {
 public:
  static constexpr int slot_count = 2;
  // f32 that are brought at a time where what follows takes them in pieces.
  static constexpr std::int64_t chunk = std::int64_t{16} << 20;

  // region: f32, slot_count equal slots.
  HostWeights(Device& device, const TensorView& region);
  Stream& stream() { return in_; }
  // `values`, f32 of one slot at most, on the device: `user` goes on when they have arrived, until done().
  TensorView bring(Stream& user, const TensorView& values);
  // What `user` was given so far is all that reads them.
  void done(Stream& user);
  // Without a buffer between, on stream(), which its caller orders.
  void copy(const TensorView& values, const TensorView& to);

 private:
  struct Slot {
    TensorView memory;
    std::unique_ptr<Event> arrived, used;
  };
  Slot& current() { return slots_[next_ % slots_.size()]; }

  Device& device_;
  Stream& in_;
  std::array<Slot, slot_count> slots_;
  std::size_t next_ = 0;
};

}  // namespace ananke::fsdp
