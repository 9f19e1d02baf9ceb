#include "plugins/fsdp/reducer.h"

#include <algorithm>
#include <utility>

#include "plugins/fsdp/gatherer.h"
#include "runtime/base/error.h"
#include "runtime/telemetry/trace.h"

namespace ananke::fsdp {

namespace {

constexpr std::int64_t alignment = 16;  // elements

bool sends_bf16(const plugin::Fsdp& config, UnitKind kind) {
  return (kind == UnitKind::experts ? config.reduce_experts() : config.reduce_dense()) == plugin::Fsdp::BF16_ALL_TO_ALL;
}

// Elements of one rank that a chunk takes, when memory of `bytes` holds what is sent to and what lands from all ranks.
std::int64_t chunk_elements(std::int64_t bytes, int ranks) {
  return std::max(alignment, bytes / 4 / ranks / alignment * alignment);
}

}  // namespace

ReduceMemory reduce_memory(const ParameterTable& table, const Placement& placement, const plugin::Fsdp& config) {
  ReduceMemory memory;
  const std::int64_t limit = std::int64_t{config.reduce_chunk_mib()} << 20;
  for (int unit = 0; unit < static_cast<int>(table.units().size()); ++unit) {
    if (!is_cut(placement, unit, {})) continue;
    const std::int64_t range = placement.largest_padded(unit) / placement.unit(unit, {}).ranks;
    if (sends_bf16(config, table.units()[static_cast<std::size_t>(unit)].kind)) {
      const int ranks = placement.unit(unit, {}).ranks;
      memory.chunks = std::max(memory.chunks, std::min(range, chunk_elements(limit, ranks)) * ranks * 4);
      memory.landing = std::max(memory.landing, placement.unit(unit, {}).segment(UnitSegment::fp32).range);
    } else {
      memory.landing = std::max(memory.landing, range);
    }
  }
  return memory;
}

std::vector<CollectiveUse> reduce_exchanges(const ParameterTable& table, const Placement& placement,
                                            const MeshCoordinates& at, const plugin::Fsdp& config) {
  const std::int64_t limit = std::int64_t{config.reduce_chunk_mib()} << 20;
  std::vector<CollectiveUse> uses;
  const auto add = [&](const char* axis, CollectiveKind kind, std::int64_t bytes) {
    uses.push_back({axis, kind, static_cast<std::uint64_t>(bytes)});
  };
  for (int unit = 0; unit < static_cast<int>(table.units().size()); ++unit) {
    const UnitPlacement& place = placement.unit(unit, at);
    const std::int64_t wire = place.segment(UnitSegment::wire).range, small = place.segment(UnitSegment::fp32).range;
    const char* axis = axis_name(table, unit);
    if (is_cut(placement, unit, at)) {
      const bool bf16 = sends_bf16(config, table.units()[static_cast<std::size_t>(unit)].kind);
      add(axis, CollectiveKind::reduce_scatter, (bf16 ? small : std::max(wire, small)) * place.ranks * 4);
      if (bf16) {
        add(axis, CollectiveKind::all_to_all, std::min(wire, chunk_elements(limit, place.ranks)) * place.ranks * 2);
      }
    }
    if (placement.mesh().replicate > 1) add("replicate", CollectiveKind::all_reduce, place.range() * 4);
  }
  return uses;
}

Reducer::Reducer(const StartContext& context, const plugin::Fsdp& config, Slots slots, std::vector<TensorView> owned,
                 const TensorView& region, const TensorView& chunks)
    : table_(context.table),
      replicate_(context.replicate),
      device_(context.backend.device()),
      elementwise_(*context.backend.operators().elementwise),
      compute_(device_.stream(Resource::compute)),
      network_(device_.stream(Resource::network)),
      slots_(std::move(slots)),
      wire_(context.backend.operators().wire),
      chunk_limit_(std::int64_t{config.reduce_chunk_mib()} << 20),
      chunks_(chunks) {
  if (region) landing_ = region.slice(slots_.elements, region.elements() - slots_.elements);
  for (std::size_t unit = 0; unit < owned.size(); ++unit) {
    const int index = static_cast<int>(unit);
    const UnitPlacement& place = context.placement.unit(index, context.at);
    const bool cut = is_cut(context.placement, index, context.at);
    units_.push_back({.axis = &axis_of(context, index),
                      .place = place,
                      .bf16 = cut && sends_bf16(config, table_.units()[unit].kind),
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
  }
  const TraceSpan span(TraceKind::call,
                       [&] { return TraceText{"reduce " + table_.units()[static_cast<std::size_t>(use.unit)].name}; });
  if (unit.place.ranks > 1) send(unit);
  if (use.last_gradient && replicate_.size() > 1) sum_over_replicas(unit);
}

void Reducer::send(Unit& unit) {
  compute_.record(*unit.computed);
  network_.wait(*unit.computed);
  const SegmentViews homes = segments_of(unit.home, unit.place);
  if (unit.bf16) send_in_chunks(unit);
  // What lands in f32 lies at the end of the range: all of it, or the fp32 segment.
  const std::int64_t begin = unit.bf16 ? unit.place.range_begin(UnitSegment::fp32) : 0;
  const TensorView owned = unit.owned.slice(begin, unit.place.range() - begin);
  const TensorView landing = landing_.slice(0, owned.elements());
  for (const UnitSegment which : {UnitSegment::wire, UnitSegment::fp32}) {
    const std::int64_t range = unit.place.segment(which).range;
    if (range == 0 || (unit.bf16 && which == UnitSegment::wire)) continue;
    unit.axis->reduce_scatter(network_, homes[which], landing.slice(unit.place.range_begin(which) - begin, range));
  }
  network_.record(*unit.reduced);  // the home may be used again; landing and owner belong to the network stream
  if (landing.elements() > 0) elementwise_.add(network_, owned, landing, owned);
  unit.open = false;
  unit.sent = true;
  unit.bytes += (unit.owned.bytes() - (unit.bf16 ? static_cast<std::uint64_t>(begin) * 2 : 0)) *
                static_cast<std::uint64_t>(unit.place.ranks - 1);
}

// The wire segment. Chunks are cut the same on all ranks of the axis: their ranges are equally long.
void Reducer::send_in_chunks(Unit& unit) {
  const std::int64_t range = unit.place.segment(UnitSegment::wire).range, ranks = unit.place.ranks;
  const TensorView home = segments_of(unit.home, unit.place)[UnitSegment::wire].reshaped({ranks, range});
  const TensorView owned = unit.owned.slice(unit.place.range_begin(UnitSegment::wire), range);
  const std::int64_t chunk = std::min(range, chunk_elements(chunk_limit_, unit.place.ranks));
  for (std::int64_t begin = 0; begin < range; begin += chunk) {
    const std::int64_t count = std::min(chunk, range - begin), bytes = ranks * count * 2;
    const TensorView sent{chunks_.slice(0, bytes).data, DType::bf16, Shape{ranks, count}};
    const TensorView landed{chunks_.slice(ranks * chunk * 2, bytes).data, DType::bf16, Shape{ranks, count}};
    wire_->to_bf16(network_, {home, begin, sent});
    counts_.assign(static_cast<std::size_t>(ranks), count);
    unit.axis->all_to_all(network_, sent, counts_, landed, counts_);
    wire_->landing_sum(network_, {landed, owned.slice(begin, count), true});
  }
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
