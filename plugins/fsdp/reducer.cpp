#include "plugins/fsdp/reducer.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"

namespace ananke::fsdp {

std::int64_t landing_elements(const ParameterTable& table, const Placement& placement) {
  std::int64_t elements = 0;
  if (placement.mesh().shard == 1) return elements;
  for (int unit = 0; unit < static_cast<int>(table.units().size()); ++unit) {
    elements = std::max(elements, placement.unit(unit).range);
  }
  return elements;
}

Reducer::Reducer(const StartContext& context, Slots slots, std::vector<TensorView> owned, const TensorView& region)
    : table_(context.table),
      shard_(context.shard),
      replicate_(context.replicate),
      device_(context.backend.device()),
      elementwise_(*context.backend.operators().elementwise),
      compute_(device_.stream(Resource::compute)),
      network_(device_.stream(Resource::network)),
      slots_(std::move(slots)) {
  if (region) landing_ = region.slice(slots_.elements, region.elements() - slots_.elements);
  for (std::size_t unit = 0; unit < owned.size(); ++unit) {
    const std::int64_t padded = context.placement.unit(static_cast<int>(unit)).padded;
    units_.push_back({.owned = owned[unit],
                      .home = region ? region.slice(slots_.offset[unit], padded) : owned[unit],
                      .computed = device_.make_event(),
                      .reduced = device_.make_event()});
  }
}

void Reducer::begin(const Schedule& schedule, const TensorView& all) {
  schedule_ = &schedule;
  const bool any =
      std::any_of(schedule.begin(), schedule.end(), [](const Item& i) { return i.phase != Phase::forward; });
  // The owner's gradient is first touched on this stream.
  if (any && all) device_.zero(landing_ ? network_ : compute_, all.data, all.bytes());
}

TensorView Reducer::acquire(int unit) {
  Unit& mine = at(unit);
  if (!landing_ || mine.open) return mine.home;
  // What was reduced from this memory before: later zeroing is ordered after it.
  const auto wait_for = [&](Unit& other) {
    if (std::exchange(other.sent, false)) compute_.wait(*other.reduced);
  };
  wait_for(mine);
  for (const int other : slots_.overlaps[static_cast<std::size_t>(unit)]) {
    ANANKE_CHECK(!at(other).open, "the gradient of unit {} needs the memory of unit {}'s, which was not reduced",
                 table_.units()[static_cast<std::size_t>(unit)].name,
                 table_.units()[static_cast<std::size_t>(other)].name);
    wait_for(at(other));
  }
  device_.zero(compute_, mine.home.data, mine.home.bytes());
  mine.open = true;
  return mine.home;
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
  if (landing_) {
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
  const TensorView landing = landing_.slice(0, unit.owned.elements());
  shard_.reduce_scatter(network_, unit.home, landing);
  network_.record(*unit.reduced);  // the home may be used again; landing and owner belong to the network stream
  elementwise_.add(network_, unit.owned, landing, unit.owned);
  unit.open = false;
  unit.sent = true;
  bytes_ += unit.owned.bytes() * static_cast<std::uint64_t>(shard_.size() - 1);
}

void Reducer::sum_over_replicas(Unit& unit) {
  if (!landing_) {  // the compute stream made the owner's gradient
    compute_.record(*unit.computed);
    network_.wait(*unit.computed);
  }
  replicate_.all_reduce(network_, unit.owned, Reduction::sum);
  const auto size = static_cast<std::uint64_t>(replicate_.size());
  bytes_ += 2 * unit.owned.bytes() * (size - 1) / size;
}

void Reducer::finish() {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    ANANKE_CHECK(!units_[unit].open, "the schedule ends and the gradient of unit {} was not reduced",
                 table_.units()[unit].name);
  }
}

}  // namespace ananke::fsdp
