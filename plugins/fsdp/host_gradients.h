// Gradients that are summed in host memory. What one reduction adds is added on the device, to what the host has so
// far, so that the sum has the order, and the bits, that it has where it never leaves the device:
//
//   host_to_device   sum so far, unless this is the step's first
//   network          + what was reduced [+ replicas at the last, and the sum of its squares]
//   device_to_host   sum
//
// A unit that is cut is added to in one of two buffers here; one that is not comes back to where its gradient is made.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "runtime/comm/placement.h"
#include "runtime/device/device.h"
#include "runtime/operators/elementwise.h"

namespace ananke::fsdp {

class HostGradients {
 public:
  static constexpr int slot_count = 2;
  struct Owned {
    bool on_host = false;
    TensorView sum = {};                 // f32 on the host: this rank's range of the unit
    std::vector<FragmentRun> runs = {};  // of its fragments
  };
  // owned: by unit. region: f32, slot_count equal slots. squares: f64 on the device, one for each run of all units.
  HostGradients(Device& device, Elementwise& elementwise, std::vector<Owned> owned, const TensorView& region,
                const TensorView& squares);

  // Nothing of a step is summed yet. The network stream is ordered after what read the sums of squares before, and both
  // copy streams after what used the gradients.
  void begin();
  // Of a unit that is cut: the sum so far in a buffer, to be added to by the network stream until close().
  TensorView open(int unit);
  void close(int unit, bool last);
  // Of one that is not: the sum so far into `home`, where the compute stream adds to it; false, and nothing done, where
  // there is none yet. The home is free once `free` of those that shared its memory are reached; compute is ordered
  // after them already.
  bool bring_home(int unit, const TensorView& home, const std::vector<const Event*>& free);
  // From the network stream, which is behind what was added. `left`: when the home may be used again.
  void take_from(int unit, const TensorView& home, bool last, Event& left);
  // Gradients that nothing was added to are 0.
  void finish();

  std::uint64_t bytes_in(int unit) const { return units_[static_cast<std::size_t>(unit)].in; }
  std::uint64_t bytes_out(int unit) const { return units_[static_cast<std::size_t>(unit)].out; }

 private:
  struct Unit {
    Owned owned;
    std::size_t first_run = 0;
    bool fresh = false;  // the host has no sum of this step yet
    std::unique_ptr<Event> arrived = {}, left = {};
    std::uint64_t in = 0, out = 0;
  };
  struct Slot {
    TensorView memory;
    std::unique_ptr<Event> left;
  };
  Unit& at(int unit) { return units_[static_cast<std::size_t>(unit)]; }
  Slot& current() { return slots_[next_ % slots_.size()]; }
  void fetch(Unit& unit, const TensorView& to, Stream& user);
  void send(Unit& unit, const TensorView& from, bool last, Event& left);

  Device& device_;
  Elementwise& elementwise_;
  Stream &compute_, &network_, &in_, &out_;
  std::vector<Unit> units_;
  std::array<Slot, slot_count> slots_;
  std::size_t next_ = 0;
  TensorView squares_;
  std::unique_ptr<Event> summed_;
};

}  // namespace ananke::fsdp
