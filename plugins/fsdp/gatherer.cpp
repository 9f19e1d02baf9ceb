#include "plugins/fsdp/gatherer.h"

#include <utility>

#include "runtime/base/error.h"

namespace ananke::fsdp {

Gatherer::Gatherer(const StartContext& context, Slots slots, std::vector<TensorView> masters, const TensorView& region,
                   int blocks_ahead)
    : table_(context.table),
      compute_(context.backend.device().stream(Resource::compute)),
      network_(context.backend.device().stream(Resource::network)),
      slots_(std::move(slots)),
      blocks_ahead_(blocks_ahead) {
  Device& device = context.backend.device();
  for (std::size_t unit = 0; unit < masters.size(); ++unit) {
    const int index = static_cast<int>(unit);
    const UnitPlacement& place = context.placement.unit(index, context.at);
    const bool cut = is_cut(context.placement, index, context.at);
    units_.push_back({.axis = &axis_of(context, index),
                      .place = place,
                      .master = masters[unit],
                      .home = cut ? region.slice(slots_.offset[unit], place.padded()) : masters[unit],
                      .gathered = device.make_event(),
                      .released = device.make_event()});
  }
}

void Gatherer::begin(const Schedule& schedule) {
  uses_.clear();
  first_of_item_.clear();
  next_ = released_ = 0;
  int leg = 0;
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    if (i > 0 && schedule[i].block != schedule[i - 1].block) ++leg;
    first_of_item_.push_back(uses_.size());
    for (const UnitUse& use : schedule[i].units) {
      if (use.needs_weights) uses_.push_back({use.unit, leg});
    }
  }
  first_of_item_.push_back(uses_.size());
  run_ahead(0);
}

std::size_t Gatherer::position(int item, int unit) const {
  const auto i = static_cast<std::size_t>(item);
  for (std::size_t use = first_of_item_[i]; use < first_of_item_[i + 1]; ++use) {
    if (uses_[use].unit == unit) return use;
  }
  fail(ErrorKind::internal, "item {} does not use the weights of unit {}", item,
       table_.units()[static_cast<std::size_t>(unit)].name);
}

int Gatherer::holder(int unit) const {
  if (units_[static_cast<std::size_t>(unit)].resident) return -1;
  for (const int other : slots_.overlaps[static_cast<std::size_t>(unit)]) {
    if (units_[static_cast<std::size_t>(other)].promised > 0) return other;
  }
  return -1;
}

void Gatherer::promise(const Use& use) {
  Unit& unit = at(use.unit);
  ++unit.promised;
  if (unit.resident || unit.place.ranks == 1) return;
  for (const int other : slots_.overlaps[static_cast<std::size_t>(use.unit)]) {
    // What is not resident was overwritten by an earlier gather of this stream, which has waited for it.
    if (!std::exchange(at(other).resident, false)) continue;
    network_.wait(*at(other).released);
  }
  gather(unit);
  network_.record(*unit.gathered);
  unit.resident = true;
}

// Segment by segment: what a segment gathers is its array.
void Gatherer::gather(Unit& unit) {
  const SegmentViews homes = segments_of(unit.home, unit.place);
  for (const UnitSegment which : {UnitSegment::wire, UnitSegment::fp32}) {
    const std::int64_t range = unit.place.segment(which).range;
    if (range == 0) continue;
    unit.axis->all_gather(network_, unit.master.slice(unit.place.range_begin(which), range), homes[which]);
  }
  unit.bytes += unit.master.bytes() * static_cast<std::uint64_t>(unit.place.ranks - 1);
}

void Gatherer::run_ahead(int leg) {
  for (; next_ < uses_.size(); ++next_) {
    const Use& use = uses_[next_];
    if (use.leg > leg + blocks_ahead_ || holder(use.unit) >= 0) return;
    promise(use);
  }
}

SegmentViews Gatherer::acquire(int item, int unit) {
  const std::size_t use = position(item, unit);
  for (; next_ <= use; ++next_) {
    // Units of one block never overlap, so only a use that should have been released by now can be in the way.
    const int other = holder(uses_[next_].unit);
    ANANKE_CHECK(other < 0, "item {} needs the memory of unit {}, which an earlier item has not released", item,
                 table_.units()[static_cast<std::size_t>(other)].name);
    promise(uses_[next_]);
  }
  run_ahead(uses_[use].leg);
  compute_.wait(*at(unit).gathered);
  return segments_of(at(unit).home, at(unit).place);
}

void Gatherer::release(int item, int unit) {
  ANANKE_CHECK(position(item, unit) < next_ && at(unit).promised > 0,
               "item {} releases unit {}, which it does not hold", item,
               table_.units()[static_cast<std::size_t>(unit)].name);
  compute_.record(*at(unit).released);
  --at(unit).promised;
  ++released_;
}

void Gatherer::finish() {
  ANANKE_CHECK(released_ == uses_.size(), "the schedule ends with {} of {} uses of weights released", released_,
               uses_.size());
}

Traffic Gatherer::traffic() const {
  Traffic lines;
  for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) {
    const Unit& what = units_[static_cast<std::size_t>(unit)];
    if (what.place.ranks == 1) continue;
    lines.push_back({Resource::network, axis_name(table_, unit), unit, Direction::gather, what.bytes});
  }
  return lines;
}

void Gatherer::drop() {
  for (Unit& unit : units_) unit.resident = false;
}

}  // namespace ananke::fsdp
