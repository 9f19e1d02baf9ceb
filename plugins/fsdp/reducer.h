// Sums gradients at their owners.
//
// A whole unit's gradient has a home like its weights (slots.h), zeroed when an item first touches it (of experts, which
// are most of a model, written by that item instead) and reduced when the last of a run of items has. Sums are f32: over
// the items of a run in the home, over ranks by the reduce-scatter, over runs at the owner in schedule order, over
// replicas once, at the step's last gradient.
// BF16_ALL_TO_ALL: instead of the reduce-scatter the wire segment goes out in chunks, rounded to bf16, and the owner
// adds what landed from all ranks, itself included, in f32 in rank order. Where the ranks of the axis reach each
// other's memory it takes that from where they have rounded it: nothing lands, and the sums are the same. A unit that
// is not cut has the owner's gradient as its home, if that is f32 and on the device. Where owners store bf16, every
// unit has a home, and what was summed in f32 is added to the owner's gradient and rounded, once for each run and once
// for the replicas: as often as it is stored.
#pragma once

#include <memory>
#include <vector>

#include "plugins/fsdp/fsdp.pb.h"
#include "plugins/fsdp/host_gradients.h"
#include "plugins/fsdp/owned.h"
#include "plugins/fsdp/slots.h"
#include "runtime/roles/parameters.h"

namespace ananke::fsdp {

// What reductions need beside the homes.
struct ReduceMemory {
  std::int64_t landing = 0;  // f32 elements: a range before it is added at the owner, or what the owner widens of it
  std::int64_t chunks = 0;   // bytes: bf16 that is sent and that lands
};
// `stored`: of wire segments at their owners.
ReduceMemory reduce_memory(const ParameterTable& table, const Placement& placement, const plugin::Fsdp& config,
                           DType stored);

// The largest reduction of each axis.
std::vector<CollectiveUse> reduce_exchanges(const ParameterTable& table, const Placement& placement,
                                            const MeshCoordinates& at, const plugin::Fsdp& config, DType stored);

class Reducer {
 public:
  // owned: the owner's gradient of this rank's ranges of each unit (owned.h), of f32 where they are on the host.
  // region: f32 [slots.elements + landing], chunks: u8; empty where no unit has a home. `host`: null where no unit is
  // there; else `on_host` says which, by unit.
  Reducer(const StartContext& context, const plugin::Fsdp& config, DType stored, Slots slots,
          std::vector<SegmentViews> owned, const TensorView& region, const TensorView& chunks,
          std::unique_ptr<HostGradients> host, const std::vector<bool>& on_host);
  // All streams are already ordered after what used the gradients before. `schedule` outlives finish().
  void begin(const Schedule& schedule);
  // `write`: it holds nothing yet, and is to be written (UnitViews::write_gradient).
  SegmentViews acquire(int unit, bool& write);
  void reduce(int item, const UnitUse& use);
  void finish();
  Traffic traffic() const;

 private:
  struct Unit {
    Communicator* axis;  // that the unit is cut over
    UnitPlacement place;
    bool bf16;    // the wire segment's all-to-all
    bool direct;  // the same out of the other ranks' memory
    bool on_host;
    bool own_home;  // items add to a home of its own
    bool written;   // who makes its gradient can write it
    SegmentViews owned;
    TensorView home;
    bool open = false;   // the home holds a sum that the owner does not have
    bool sent = false;   // the network stream may still read the home
    bool fresh = false;  // the owner's gradient is not zeroed, but written by the first sum, or by who makes it
    std::uint64_t bytes = 0, replica_bytes = 0;  // received, over the axis of the cut and over the replicas
    std::unique_ptr<Event> computed, reduced;
  };
  void share_chunks();
  bool goes_on(int item, int unit) const;
  bool open(Unit& unit, int index);  // there is something to add to
  void make_room(Unit& unit, int index);
  void send(Unit& unit, const SegmentViews& owned);
  void send_in_chunks(Unit& unit, const SegmentViews& owned);
  void sum_at_host(Unit& unit, int index, bool last);
  void wait_for_compute(Unit& unit);
  void zero(const Unit& unit);
  void clear(const Unit& unit);
  void add_to_owner(Unit& unit, const SegmentViews& owned, std::int64_t begin, const TensorView& sums);
  void add_narrow(const TensorView& owned, const TensorView& sums, bool fresh);
  void sum_over_replicas(Unit& unit, const SegmentViews& owned);
  void sum_narrow_over_replicas(const TensorView& owned);
  Unit& at(int unit) { return units_[static_cast<std::size_t>(unit)]; }

  const ParameterTable& table_;
  Communicator& replicate_;
  Device& device_;
  Elementwise& elementwise_;
  Stream& compute_;
  Stream& network_;
  Slots slots_;
  Wire* wire_;                // null where every wire is f32
  std::int64_t chunk_limit_;  // bytes
  TensorView chunks_, landing_;
  std::vector<std::int64_t> counts_;  // of a chunk, per rank
  std::vector<Unit> units_;
  std::unique_ptr<HostGradients> host_;
  bool any_gradient_ = false;  // of the schedule
  const Schedule* schedule_ = nullptr;
};

}  // namespace ananke::fsdp
