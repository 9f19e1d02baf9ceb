#include "plugins/fsdp/reducer.h"

#include <algorithm>
#include <utility>

#include "plugins/fsdp/gatherer.h"
#include "runtime/base/error.h"

namespace ananke::fsdp {

std::int64_t landing_elements(const ParameterTable& table, const Placement& placement) {
  std::int64_t elements = 0;
  for (int unit = 0; unit < static_cast<int>(table.units().size()); ++unit) {
    if (!is_cut(placement, unit, {})) continue;
    elements = std::max(elements, placement.largest_padded(unit) / placement.unit(unit, {}).ranks);
  }
  return elements;
}

Reducer::Reducer(const StartContext& context, Slots slots, std::vector<TensorView> owned, const TensorView& region)
    : table_(context.table),
      replicate_(context.replicate),
      device_(context.backend.device()),
      elementwise_(*context.backend.operators().elementwise),
      compute_(device_.stream(Resource::compute)),
      network_(device_.stream(Resource::network)),
      slots_(std::move(slots)) {
  if (region) landing_ = region.slice(slots_.elements, region.elements() - slots_.elements);
  for (std::size_t unit = 0; unit < owned.size(); ++unit) {
    const int index = static_cast<int>(unit);
    const UnitPlacement& place = context.placement.unit(index, context.at);
    const bool cut = is_cut(context.placement, index, context.at);
    units_.push_back({.axis = &axis_of(context, index),
                      .place = place,
                      .owned = owned[unit],
                      .home = cut ? region.slice(slots_.offset[unit], place.padded()) : owned[unit],
                      .computed = device_.make_event(),
                      .reduced = device_.make_event()});
  }
}

void Reducer::begin(const Schedule& schedule) {
  schedule_ = &schedule;
  const bool any =
      std::any_of(schedule.begin(), schedule.end(), [](const Item& i) { return i.phase != Phase::forward; });
  if (!any) return;
  for (const Unit& unit : units_) {
    if (unit.owned.elements() == 0) continue;
    // By the stream that first touches the owner's gradient.
    device_.zero(unit.place.ranks > 1 ? network_ : compute_, unit.owned.data, unit.owned.bytes());
  }
}

SegmentViews Reducer::acquire(int unit) {
  if (at(unit).place.ranks > 1 && !at(unit).open) open(at(unit), unit);
  return segments_of(at(unit).home, at(unit).place);
}

void Reducer::open(Unit& unit, int index) {
  // What was reduced from this memory before: later zeroing is ordered after it.
  const auto wait_for = [&](Unit& other) {
    if (std::exchange(other.sent, false)) compute_.wait(*other.reduced);
  };
  wait_for(unit);
  for (const int other : slots_.overlaps[static_cast<std::size_t>(index)]) {
    ANANKE_CHECK(!at(other).open, "the gradient of unit {} needs the memory of unit {}'s, which was not reduced",
                 table_.units()[static_cast<std::size_t>(index)].name,
                 table_.units()[static_cast<std::size_t>(other)].name);
    wait_for(at(other));
  }
  if (unit.home.elements() > 0) device_.zero(compute_, unit.home.data, unit.home.bytes());
  unit.open = true;
}

// Does the next item add to the same gradient? Then one reduction serves both.
bool Reducer::goes_on(int item, int unit) const {
  const auto next = static_cast<std::size_t>(item) + 1;
  if (next >= schedule_->size() || (*schedule_)[next].phase == Phase::forward) return false;
  const auto& uses = (*schedule_)[next].units;
  return std::any_of(uses.begin(), uses.end(), [&](const UnitUse& use) { return use.unit == unit; });
}

void Reducer::reduce(int item, const UnitUse& use) {
  Unit& unit = at(use.unit);
  if (unit.place.ranks > 1) {
    ANANKE_CHECK(unit.open, "item {} reduces the gradient of unit {}, which it has not acquired", item,
                 table_.units()[static_cast<std::size_t>(use.unit)].name);
    if (goes_on(item, use.unit)) return;
    send(unit);
  }
  if (use.last_gradient && replicate_.size() > 1) sum_over_replicas(unit);
}

void Reducer::send(Unit& unit) {
  compute_.record(*unit.computed);
  network_.wait(*unit.computed);
  const SegmentViews homes = segments_of(unit.home, unit.place);
  const TensorView landing = landing_.slice(0, unit.owned.elements());
  for (const UnitSegment which : {UnitSegment::wire, UnitSegment::fp32}) {
    const std::int64_t range = unit.place.segment(which).range;
    if (range == 0) continue;
    unit.axis->reduce_scatter(network_, homes[which], landing.slice(unit.place.range_begin(which), range));
  }
  network_.record(*unit.reduced);  // the home may be used again; landing and owner belong to the network stream
  if (landing.elements() > 0) elementwise_.add(network_, unit.owned, landing, unit.owned);
  unit.open = false;
  unit.sent = true;
  unit.bytes += unit.owned.bytes() * static_cast<std::uint64_t>(unit.place.ranks - 1);
}

void Reducer::sum_over_replicas(Unit& unit) {
  if (unit.owned.elements() == 0) return;
  if (unit.place.ranks == 1) {  // the compute stream made the owner's gradient
    compute_.record(*unit.computed);
    network_.wait(*unit.computed);
  }
  replicate_.all_reduce(network_, unit.owned, Reduction::sum);
  const auto size = static_cast<std::uint64_t>(replicate_.size());
  unit.replica_bytes += 2 * unit.owned.bytes() * (size - 1) / size;
}

Traffic Reducer::traffic() const {
  Traffic lines;
  for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) {
    const Unit& what = units_[static_cast<std::size_t>(unit)];
    if (what.place.ranks > 1) {
      lines.push_back({Resource::network, axis_name(table_, unit), unit, Direction::reduce, what.bytes});
    }
    if (replicate_.size() > 1) {
      lines.push_back({Resource::network, "replicate", unit, Direction::reduce, what.replica_bytes});
    }
  }
  return lines;
}

void Reducer::finish() {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    ANANKE_CHECK(!units_[unit].open, "the schedule ends and the gradient of unit {} was not reduced",
                 table_.units()[unit].name);
  }
}

}  // namespace ananke::fsdp
