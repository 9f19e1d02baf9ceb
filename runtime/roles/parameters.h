// Role "parameters": owns every parameter's master copy and gradient, and brings them where they are computed with.
// There is no other path: one rank is a shard axis of size 1.
//
//   plan ─ start ─ load weights through fragments() ─┐
//   ┌────────────────────────────────────────────────┘
//   └─ per step: begin(schedule) ─ per item: acquire(item, unit) ... release(item, unit)
//                                             └ reduce(item, unit) when the item made a gradient of the unit
//                ─ finish() ─ the optimizer updates fragments() ─ updated() ─ next step
//
// All calls come from the one host thread that issues collectives; none waits for the device. Views returned are valid
// on the compute stream from the call until release() of the same item and unit. When the role is destroyed all streams
// stand still.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/placement.h"
#include "runtime/model/schedule.h"
#include "runtime/roles/backend.h"
#include "runtime/roles/traffic.h"

namespace ananke {

// One flat array per segment of a unit, as this rank's UnitPlacement lays them out: [padded of the segment]. f32, but
// that the wire segment of weights is in what the job computes in (compute_type.h).
struct SegmentViews {
  std::array<TensorView, segment_count> segments;  // by index_of(UnitSegment)
  bool given = false;                              // a unit may also be given and have no element here

  const TensorView& operator[](UnitSegment which) const { return segments[index_of(which)]; }
  explicit operator bool() const { return given; }
};

struct UnitViews {
  SegmentViews weights;   // not given when the use does not need them
  SegmentViews gradient;  // not given in a forward-only item
  // The gradient holds nothing yet, not even zeros, but behind its last parameter: who makes it writes its matrices
  // whole. Of units of experts only; others are always added to.
  bool write_gradient = false;
};

// Of an array in which a unit's segments lie one behind the other, all f32: [place.padded() or more].
inline SegmentViews segments_of(const TensorView& gathered, const UnitPlacement& place) {
  SegmentViews views;
  views.given = true;
  for (const UnitSegment which : {UnitSegment::wire, UnitSegment::fp32}) {
    views.segments[index_of(which)] = gathered.slice(place.padded_begin(which), place.segment(which).padded);
  }
  return views;
}

// One owned piece of one parameter, and where it lives.
struct OwnedFragment {
  Fragment where;
  // [count] each, of what the job stores (stored_type in compute_type.h).
  TensorView weight;    // master copy
  TensorView gradient;  // complete after finish()
  // host: both are f32, in the device's host_memory(). Host and device may read and write them there; the runtime
  // brings them to the device for an update, and keeps the optimizer's states beside them.
  Place place = Place::device;
};

class Parameters {
 public:
  static constexpr const char* role = "parameters";
  virtual ~Parameters() = default;
  // Can it hand out the wire segments of weights in this type? The one it hands out is the job's (compute_type.h).
  // Pure.
  virtual bool gathers_into(DType type) const { return type == DType::f32; }
  // Can owners' wire segments, weights and gradients, be of this type? They are of the job's (stored_type in
  // compute_type.h). Pure.
  virtual bool stores_in(DType type) const { return type == DType::f32; }
  // Pure: no device, no peers.
  virtual std::vector<PlanLine> plan(const ParameterTable& table, const Placement& placement) const = 0;
  // What it sends at most. Pure.
  virtual std::vector<CollectiveUse> exchanges(const ParameterTable& /*table*/, const Placement& /*placement*/) const {
    return {};
  }
  // Where masters and gradients of the unit lie: OwnedFragment::place of its fragments. Pure.
  virtual Place place_of(const ParameterTable& /*table*/, int /*unit*/) const { return Place::device; }
  // Allocates. Master copies hold zeros.
  virtual void start(const StartContext& context) = 0;
  // What this rank owns, in the placement's order. Every replica holds equal values.
  virtual std::span<const OwnedFragment> fragments() = 0;

  // A list of items begins; gathers may start at once. Gradients at the owner are those of this list alone when it has
  // any gradient item. Every item acquires, reduces and releases what its UnitUses say, items in order; within an item a
  // unit is acquired when it is needed (experts after the attention of a forward) and reduced and released when it is
  // done with (experts before the attention of a backward). `schedule` must outlive finish().
  virtual void begin(const Schedule& schedule) = 0;
  virtual UnitViews acquire(int item, int unit) = 0;
  virtual void release(int item, int unit) = 0;
  // The item's gradient of the unit is in its view: called for every unit of every item that is not forward only. Adds
  // it into the owner's fragment, in f32 (and rounds the sum where the fragment is narrower); while the next item adds
  // to the same gradient (layer-outer order) the sum may wait in the view. At the unit's last gradient also sums over
  // replicas (the same bits on each).
  virtual void reduce(int item, int unit) = 0;
  // The list is done: orders the compute stream after every reduction.
  virtual void finish() = 0;
  // Of the gradients on the host the sums of squares, complete after finish(): f64 [n] on the device, one for each of
  // runs_of() the fragments there, in their order. Empty: the runtime reads the gradients once more.
  virtual TensorView square_sums() { return {}; }
  // Master copies have changed: gathered copies are stale.
  virtual void updated() = 0;
  // What this rank received since start.
  virtual Traffic traffic() const = 0;
};

}  // namespace ananke
