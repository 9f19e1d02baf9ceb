// Sums gradients at their owners.
//
// A whole unit's gradient has a home like its weights (slots.h), zeroed when an item first touches it and reduced when
// the last of a run of items has. Sums are f32: over the items of a run in the home, over ranks by the reduce-scatter,
// over runs at the owner in schedule order, over replicas once, at the step's last gradient.
// A unit that is not cut has the owner's gradient as its home.
#pragma once

#include <memory>
#include <vector>

#include "plugins/fsdp/slots.h"
#include "runtime/roles/parameters.h"

namespace ananke::fsdp {

// f32 elements that one reduction needs to land in before it is added at the owner: the largest range of a unit that is
// cut; 0 where none is.
std::int64_t landing_elements(const ParameterTable& table, const Placement& placement);

class Reducer {
 public:
  // owned: the owner's gradient of this rank's range of each unit. region: f32 [slots.elements + landing_elements],
  // empty where no unit is cut.
  Reducer(const StartContext& context, Slots slots, std::vector<TensorView> owned, const TensorView& region);
  // Both streams are already ordered after what used the gradients before. `schedule` outlives finish().
  void begin(const Schedule& schedule);
  SegmentViews acquire(int unit);
  void reduce(int item, const UnitUse& use);
  void finish();
  Traffic traffic() const;

 private:
  struct Unit {
    Communicator* axis;  // that the unit is cut over
    UnitPlacement place;
    TensorView owned, home;
    bool open = false;                           // the home holds a sum that the owner does not have
    bool sent = false;                           // the network stream may still read the home
    std::uint64_t bytes = 0, replica_bytes = 0;  // received, over the axis of the cut and over the replicas
    std::unique_ptr<Event> computed, reduced;
  };
  bool goes_on(int item, int unit) const;
  void open(Unit& unit, int index);
  void send(Unit& unit);
  void sum_over_replicas(Unit& unit);
  Unit& at(int unit) { return units_[static_cast<std::size_t>(unit)]; }

  const ParameterTable& table_;
  Communicator& replicate_;
  Device& device_;
  Elementwise& elementwise_;
  Stream& compute_;
  Stream& network_;
  Slots slots_;
  TensorView landing_;
  std::vector<Unit> units_;
  const Schedule* schedule_ = nullptr;
};

}  // namespace ananke::fsdp
