// Brings whole units of weights into their homes, ahead of use, as the job computes with them: in bf16 also a unit that
// is whole on its owner is rounded into a home, unless the owner stores it in bf16 already. What is stored in bf16
// travels as it is.
//
// A unit stays in its home until another one's gather needs the memory, so what is still there is not gathered again:
// not for the next microbatch of the same block, not at the turn from forward to backward. All decisions follow from
// the schedule and the order of calls alone, never from what the device has reached: every rank issues the same
// collectives. Memory is guarded by events: a gather starts when the compute stream has passed the release of what it
// overwrites.
#pragma once

#include <memory>
#include <vector>

#include "plugins/fsdp/gather_wire.h"
#include "plugins/fsdp/host_weights.h"
#include "plugins/fsdp/owned.h"
#include "plugins/fsdp/slots.h"
#include "runtime/roles/parameters.h"

namespace ananke::fsdp {

// The communicator of the axis that a unit is cut over.
inline Communicator& axis_of(const StartContext& context, int unit) {
  const bool experts = context.table.units()[static_cast<std::size_t>(unit)].kind == UnitKind::experts;
  return experts ? context.expert_shard : context.shard;
}
inline const char* axis_name(const ParameterTable& table, int unit) {
  return table.units()[static_cast<std::size_t>(unit)].kind == UnitKind::experts ? "expert_shard" : "shard";
}

// What a rank needs beside the homes, in bytes.
struct GatherMemory {
  std::int64_t staging = 0;       // what is sent and what arrives over the axis of the cut
  std::int64_t node_staging = 0;  // what arrives from the ranks of the node
  std::int64_t node_copies = 0;
  std::int64_t tables = 0;     // of the pieces of FP8_E4M3
  std::int64_t from_host = 0;  // one buffer of masters that come from there
};
// `node_ranks`: of the shard axis on this rank's node; 1: no copies. Of wire segments, `compute` is their type in homes
// and `stored` at owners. `on_host`: by unit, where its master is.
GatherMemory gather_memory(const ParameterTable& table, const Placement& placement, const MeshCoordinates& at,
                           const plugin::Fsdp& config, int node_ranks, DType compute, DType stored,
                           const std::vector<bool>& on_host);

// The largest gather of each axis.
std::vector<CollectiveUse> gather_exchanges(const ParameterTable& table, const Placement& placement,
                                            const MeshCoordinates& at, const plugin::Fsdp& config, int node_ranks);

class Gatherer {
 public:
  struct Regions {
    TensorView homes;                                       // f32 [slots.elements]
    TensorView staging, node_staging, node_copies, tables;  // u8, as GatherMemory
    TensorView from_host;                                   // f32, HostWeights; empty where no unit is there
  };
  // masters: this rank's ranges of each unit (owned.h), of f32 where they are on the host, which `on_host` says by
  // unit; a unit without a home is used there (slots.h). `slots` are for wire segments in `compute`.
  Gatherer(const StartContext& context, const plugin::Fsdp& config, DType compute, DType stored, Slots slots,
           std::vector<SegmentViews> masters, const std::vector<bool>& on_host, const Regions& regions,
           int blocks_ahead);
  // The network stream, and that of copies from the host, are already ordered after every write to the masters.
  // `schedule` outlives finish().
  void begin(const Schedule& schedule);
  SegmentViews acquire(int item, int unit);
  void release(int item, int unit);
  void finish();
  // Nothing in the homes is valid any more.
  void drop();
  Traffic traffic() const;

 private:
  struct Unit {
    Communicator* axis;  // that the unit is cut over
    UnitPlacement place;
    SegmentViews master;
    TensorView home;  // where the unit is fetched to, if it is not used where it is owned
    bool fetched;
    bool on_host;  // the master is
    GatherWire wire = {};
    TensorView send_table = {}, receive_table = {};  // i64 [pieces, 6], FP8_E4M3
    TensorView node_copy = {};                       // u8, this rank's slice of the gathered bytes; empty: none is kept
    bool copied = false;                             // the node holds the unit as it is now
    bool resident = false;
    int promised = 0;                                         // uses that count on it and are not released
    std::uint64_t bytes = 0, node_bytes = 0, host_bytes = 0;  // received
    std::unique_ptr<Event> gathered, released;
  };
  struct Use {
    int unit;
    int leg;    // how often the block has changed in the schedule up to here
    bool last;  // no later item uses the weights
  };
  std::size_t position(int item, int unit) const;
  int holder(int unit) const;  // a unit that is in use where `unit` would be gathered, -1 if there is none
  void promise(const Use& use);
  void set_up_wire(const StartContext& context, const plugin::Fsdp& config, const Regions& regions);
  void write_tables(const StartContext& context, const TensorView& region);
  SegmentViews home_of(const Unit& unit) const;
  bool is_direct(const Unit& unit) const;
  void gather(Unit& unit, bool keep);
  void gather_over_axis(Unit& unit, bool keep);
  void take_master(Unit& unit);
  template <class Send>
  void with_master(Unit& unit, const TensorView& values, Send send);
  void round(Unit& unit, const TensorView& values, const TensorView& to);
  bool comes_straight(const Unit& unit) const;
  void gather_from_node(Unit& unit);
  void pack(Unit& unit, const TensorView& values, const TensorView& part);
  void unpack(Stream& stream, const Unit& unit, const TensorView& parts);
  void run_ahead(int leg);
  Unit& at(int unit) { return units_[static_cast<std::size_t>(unit)]; }

  const ParameterTable& table_;
  Communicator& node_;
  Device& device_;
  Wire* wire_;  // null where every wire is f32
  Stream& compute_;
  Stream& network_;
  Stream& nvlink_;
  const DType compute_type_;
  Slots slots_;
  int blocks_ahead_;
  TensorView staging_, node_staging_;
  std::unique_ptr<HostWeights> host_;  // null where no master is there
  std::vector<Unit> units_;
  std::vector<Use> uses_;                   // of weights, in schedule order
  std::vector<std::size_t> first_of_item_;  // index into uses_, one more than there are items
  std::size_t next_ = 0;                    // first use that is not promised yet
  std::size_t released_ = 0;                // uses released
};

}  // namespace ananke::fsdp
