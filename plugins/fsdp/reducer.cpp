#include "plugins/fsdp/reducer.h"

#include <algorithm>
#include <map>
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

std::int64_t chunk_limit(const plugin::Fsdp& config) { return std::int64_t{config.reduce_chunk_mib()} << 20; }

// What an owner that stores bf16 widens at a time, in memory of `bytes`, to sum it over replicas.
std::int64_t widened_elements(std::int64_t bytes) { return std::max(alignment, bytes / 4 / alignment * alignment); }

TensorView as_row(const TensorView& view) { return view.reshaped({1, view.elements()}); }

}  // namespace

ReduceMemory reduce_memory(const ParameterTable& table, const Placement& placement, const plugin::Fsdp& config,
                           DType stored) {
  ReduceMemory memory;
  const std::int64_t limit = chunk_limit(config);
  const bool narrow = stored != DType::f32;
  for (int unit = 0; unit < static_cast<int>(table.units().size()); ++unit) {
    const std::int64_t range = placement.largest_padded(unit) / placement.unit(unit, {}).ranks;
    if (narrow && placement.mesh().replicate > 1) {
      memory.landing = std::max(memory.landing, std::min(range, widened_elements(limit)));
    }
    if (!is_cut(placement, unit, {})) continue;
    if (sends_bf16(config, table.units()[static_cast<std::size_t>(unit)].kind)) {
      const int ranks = placement.unit(unit, {}).ranks;
      const std::int64_t chunk = std::min(range, chunk_elements(limit, ranks));
      memory.chunks = std::max(memory.chunks, chunk * ranks * 4);
      memory.landing = std::max({memory.landing, placement.unit(unit, {}).segment(UnitSegment::fp32).range,
                                 narrow ? chunk : std::int64_t{0}});
    } else {
      memory.landing = std::max(memory.landing, range);
    }
  }
  return memory;
}

std::vector<CollectiveUse> reduce_exchanges(const ParameterTable& table, const Placement& placement,
                                            const MeshCoordinates& at, const plugin::Fsdp& config, DType stored) {
  const std::int64_t limit = chunk_limit(config);
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
      if (bf16) {  // or by sum_parts(), which brings together what a reduction does
        const std::int64_t chunk = std::min(wire, chunk_elements(limit, place.ranks)) * place.ranks * 2;
        add(axis, CollectiveKind::all_to_all, chunk);
        add(axis, CollectiveKind::reduce_scatter, chunk);
      }
    }
    if (placement.mesh().replicate == 1) continue;
    const std::int64_t at_once =
        stored == DType::f32 ? place.range() : std::max(small, std::min(wire, widened_elements(limit)));
    add("replicate", CollectiveKind::all_reduce, at_once * 4);
  }
  return uses;
}

Reducer::Reducer(const StartContext& context, const plugin::Fsdp& config, DType stored, Slots slots,
                 std::vector<SegmentViews> owned, const TensorView& region, const TensorView& chunks,
                 std::unique_ptr<HostGradients> host, const std::vector<bool>& on_host)
    : table_(context.table),
      replicate_(context.replicate),
      device_(context.backend.device()),
      elementwise_(*context.backend.operators().elementwise),
      compute_(device_.stream(Resource::compute)),
      network_(device_.stream(Resource::network)),
      slots_(std::move(slots)),
      wire_(context.backend.operators().wire),
      chunk_limit_(chunk_limit(config)),
      chunks_(chunks),
      host_(std::move(host)) {
  if (region) landing_ = region.slice(slots_.elements, region.elements() - slots_.elements);
  for (std::size_t unit = 0; unit < owned.size(); ++unit) {
    const int index = static_cast<int>(unit);
    const UnitPlacement& place = context.placement.unit(index, context.at);
    const bool own_home = has_home(context.placement, index, context.at, DType::f32, stored, on_host[unit]);
    units_.push_back(
        {.axis = &axis_of(context, index),
         .place = place,
         .bf16 = is_cut(context.placement, index, context.at) && sends_bf16(config, table_.units()[unit].kind),
         .direct = false,
         .on_host = on_host[unit],
         .own_home = own_home,
         .written = table_.units()[unit].kind == UnitKind::experts,
         .owned = owned[unit],
         .home = own_home ? region.slice(slots_.offset[unit], place.padded()) : as_one(owned[unit]),
         .computed = device_.make_event(),
         .reduced = device_.make_event()});
  }
  share_chunks();
}

// Once over each axis, in the order of units, which is that of all ranks.
void Reducer::share_chunks() {
  std::map<const Communicator*, bool> shared;
  for (Unit& unit : units_) {
    if (!unit.bf16) continue;
    const auto [axis, is_new] = shared.emplace(unit.axis, false);
    if (is_new) axis->second = unit.axis->share(network_, chunks_);
    unit.direct = axis->second;
  }
}

void Reducer::begin(const Schedule& schedule) {
  schedule_ = &schedule;
  const bool any =
      std::any_of(schedule.begin(), schedule.end(), [](const Item& i) { return i.phase != Phase::forward; });
  any_gradient_ = any;
  if (!any) return;
  if (host_) host_->begin();
  for (Unit& unit : units_) {
    if (unit.on_host) continue;
    unit.fresh = unit.own_home || unit.written;
    if (!unit.fresh) zero(unit);
  }
}

// By the stream that first touches the owner's gradient.
void Reducer::zero(const Unit& unit) {
  const TensorView owned = bytes_of(unit.owned);
  if (owned.elements() > 0) device_.zero(unit.own_home ? network_ : compute_, owned.data, owned.bytes());
}

SegmentViews Reducer::acquire(int index, bool& write) {
  Unit& unit = at(index);
  const bool empty =
      unit.own_home ? !unit.open && !open(unit, index) : unit.written && std::exchange(unit.fresh, false);
  if (empty) clear(unit);
  write = empty && unit.written;
  return segments_of(unit.home, unit.place);
}

bool Reducer::open(Unit& unit, int index) {
  make_room(unit, index);
  unit.open = true;
  if (!unit.on_host || unit.place.ranks > 1) return false;
  std::vector<const Event*> free = {unit.reduced.get()};
  for (const int other : slots_.overlaps[static_cast<std::size_t>(index)]) free.push_back(at(other).reduced.get());
  return host_->bring_home(index, unit.home, free);
}

// The home, or where it is written the padding at the segments' ends.
void Reducer::clear(const Unit& unit) {
  const SegmentViews segments = segments_of(unit.home, unit.place);
  for (const UnitSegment which : {UnitSegment::wire, UnitSegment::fp32}) {
    const TensorView& segment = segments[which];
    const std::int64_t begin = unit.written ? unit.place.segment(which).elements : 0;
    if (begin == segment.elements()) continue;
    const TensorView cleared = segment.slice(begin, segment.elements() - begin);
    device_.zero(compute_, cleared.data, cleared.bytes());
  }
}

// What was reduced from this memory before is gone before the compute stream writes there.
void Reducer::make_room(Unit& unit, int index) {
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
  if (unit.own_home) {
    ANANKE_CHECK(unit.open, "item {} reduces the gradient of unit {}, which it has not acquired", item,
                 table_.units()[static_cast<std::size_t>(use.unit)].name);
    if (goes_on(item, use.unit)) return;
  }
  const TraceSpan span(TraceKind::call,
                       [&] { return TraceText{"reduce " + table_.units()[static_cast<std::size_t>(use.unit)].name}; });
  if (unit.on_host) return sum_at_host(unit, use.unit, use.last_gradient);
  if (unit.own_home) send(unit, unit.owned);
  if (!use.last_gradient || replicate_.size() == 1) return;
  if (!unit.own_home) wait_for_compute(unit);  // which made the owner's gradient
  sum_over_replicas(unit, unit.owned);
}

void Reducer::sum_at_host(Unit& unit, int index, bool last) {
  const bool cut = unit.place.ranks > 1, replicas = last && replicate_.size() > 1;
  if (cut) {
    const SegmentViews sum = ranges_of(host_->open(index), unit.place);
    send(unit, sum);
    if (replicas) sum_over_replicas(unit, sum);
    host_->close(index, last);
    return;
  }
  wait_for_compute(unit);
  if (replicas) sum_over_replicas(unit, ranges_of(unit.home, unit.place));
  host_->take_from(index, unit.home, last, *unit.reduced);
  unit.open = false;
  unit.sent = true;
}

void Reducer::wait_for_compute(Unit& unit) {
  compute_.record(*unit.computed);
  network_.wait(*unit.computed);
}

// Adds to `owned`, this rank's ranges on the device.
void Reducer::send(Unit& unit, const SegmentViews& owned) {
  wait_for_compute(unit);
  unit.open = false;
  unit.sent = true;
  if (unit.place.ranks == 1) {  // the home has all of it
    add_to_owner(unit, owned, 0, unit.home.slice(0, unit.place.range()));
    network_.record(*unit.reduced);
    return;
  }
  const SegmentViews homes = segments_of(unit.home, unit.place);
  if (unit.bf16) send_in_chunks(unit, owned);
  // What lands in f32 lies at the end of the range: all of it, or the fp32 segment. The first sum lands where it stays.
  const std::int64_t begin = unit.bf16 ? unit.place.range_begin(UnitSegment::fp32) : 0;
  const bool stays = unit.fresh && owned[UnitSegment::wire].dtype == DType::f32;
  const std::int64_t lands = unit.place.range() - begin;
  const TensorView landing = stays ? as_one(owned).slice(begin, lands) : landing_.slice(0, lands);
  for (const UnitSegment which : {UnitSegment::wire, UnitSegment::fp32}) {
    const std::int64_t range = unit.place.segment(which).range;
    if (range == 0 || (unit.bf16 && which == UnitSegment::wire)) continue;
    unit.axis->reduce_scatter(network_, homes[which], landing.slice(unit.place.range_begin(which) - begin, range));
  }
  network_.record(*unit.reduced);  // the home may be used again; landing and owner belong to the network stream
  if (!stays) add_to_owner(unit, owned, begin, landing);
  unit.fresh = false;
  unit.bytes += static_cast<std::uint64_t>(unit.place.range() * 4 - (unit.bf16 ? begin * 2 : 0)) *
                static_cast<std::uint64_t>(unit.place.ranks - 1);
}

// `sums`: f32, of the elements of the range from `begin` on.
void Reducer::add_to_owner(Unit& unit, const SegmentViews& owned, std::int64_t begin, const TensorView& sums) {
  const TensorView &wire = owned[UnitSegment::wire], &small = owned[UnitSegment::fp32];
  if (wire.dtype == DType::f32) {
    const TensorView there = as_one(owned).slice(begin, sums.elements());
    if (there.elements() > 0) elementwise_.add(network_, there, sums, there);
    return;
  }
  if (begin == 0) add_narrow(wire, sums.slice(0, wire.elements()), unit.fresh);
  const TensorView small_sums = sums.slice(unit.place.range_begin(UnitSegment::fp32) - begin, small.elements());
  if (small.elements() > 0 && unit.fresh) {
    device_.copy(network_, small.data, small_sums.data, small.bytes());
  } else if (small.elements() > 0) {
    elementwise_.add(network_, small, small_sums, small);
  }
  unit.fresh = false;
}

void Reducer::add_narrow(const TensorView& owned, const TensorView& sums, bool fresh) {
  if (owned.elements() == 0) return;
  if (fresh) {
    wire_->to_bf16(network_, {as_row(sums), 0, as_row(owned)});
  } else {
    elementwise_.add(network_, owned, sums, owned);
  }
}

// The wire segment. Chunks are cut the same on all ranks of the axis: their ranges are equally long.
void Reducer::send_in_chunks(Unit& unit, const SegmentViews& ranges) {
  const std::int64_t range = unit.place.segment(UnitSegment::wire).range, ranks = unit.place.ranks;
  const TensorView home = segments_of(unit.home, unit.place)[UnitSegment::wire].reshaped({ranks, range});
  const TensorView& owned = ranges[UnitSegment::wire];
  const std::int64_t chunk = std::min(range, chunk_elements(chunk_limit_, unit.place.ranks));
  for (std::int64_t begin = 0; begin < range; begin += chunk) {
    const std::int64_t count = std::min(chunk, range - begin), bytes = ranks * count * 2;
    const TensorView sent{chunks_.slice(0, bytes).data, DType::bf16, Shape{ranks, count}};
    const TensorView landed{chunks_.slice(ranks * chunk * 2, bytes).data, DType::bf16, Shape{ranks, count}};
    wire_->to_bf16(network_, {home, begin, sent});
    const TensorView here = owned.slice(begin, count);
    const bool narrow = owned.dtype != DType::f32, add = !narrow && !unit.fresh;
    const TensorView sum = narrow ? landing_.slice(0, count) : here;
    if (unit.direct) {
      unit.axis->sum_parts(network_, sent, sum, add);
    } else {
      counts_.assign(static_cast<std::size_t>(ranks), count);
      unit.axis->all_to_all(network_, sent, counts_, landed, counts_);
      wire_->landing_sum(network_, {landed, sum, add});
    }
    if (narrow) add_narrow(here, sum, unit.fresh);
  }
}

void Reducer::sum_over_replicas(Unit& unit, const SegmentViews& owned) {
  if (unit.place.range() == 0) return;
  const TensorView &wire = owned[UnitSegment::wire], &small = owned[UnitSegment::fp32];
  if (wire.dtype == DType::f32) {
    replicate_.all_reduce(network_, as_one(owned), Reduction::sum);
  } else {
    sum_narrow_over_replicas(wire);
    if (small.elements() > 0) replicate_.all_reduce(network_, small, Reduction::sum);
  }
  const auto size = static_cast<std::uint64_t>(replicate_.size());
  unit.replica_bytes += 2 * static_cast<std::uint64_t>(unit.place.range() * 4) * (size - 1) / size;
}

// The sum is f32, so it is rounded once however many replicas there are; pieces are the same on all of them.
void Reducer::sum_narrow_over_replicas(const TensorView& owned) {
  const std::int64_t most = widened_elements(chunk_limit_);
  for (std::int64_t begin = 0; begin < owned.elements(); begin += most) {
    const TensorView piece = owned.slice(begin, std::min(most, owned.elements() - begin));
    const TensorView sum = landing_.slice(0, piece.elements());
    wire_->from_bf16(network_, piece, sum);
    replicate_.all_reduce(network_, sum, Reduction::sum);
    wire_->to_bf16(network_, {as_row(sum), 0, as_row(piece)});
  }
}

Traffic Reducer::traffic() const {
  Traffic lines;
  for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) {
    const Unit& what = units_[static_cast<std::size_t>(unit)];
    if (what.place.ranks > 1) {
      lines.push_back({Resource::network, axis_name(table_, unit), unit, Direction::reduce, what.bytes});
    }
    if (what.on_host) {
      lines.push_back({Resource::host_to_device, "host", unit, Direction::gradients, host_->bytes_in(unit)});
      lines.push_back({Resource::device_to_host, "host", unit, Direction::gradients, host_->bytes_out(unit)});
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
    if (std::exchange(units_[unit].fresh, false)) zero(units_[unit]);  // no item made one
  }
  if (host_ && any_gradient_) host_->finish();
}

}  // namespace ananke::fsdp
