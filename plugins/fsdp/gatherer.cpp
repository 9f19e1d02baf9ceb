#include "plugins/fsdp/gatherer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/telemetry/trace.h"

namespace ananke::fsdp {

namespace {

constexpr std::int64_t alignment = 256;  // bytes, as the arena

std::int64_t aligned(std::int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

bool is_copied(const ParameterTable& table, int unit, const plugin::Fsdp& config, int node_ranks) {
  return config.node_copy() && config.reshard_after_forward() && node_ranks > 1 &&
         table.units()[static_cast<std::size_t>(unit)].kind != UnitKind::experts;
}

// One node rank's slice of what was gathered; slices are equal, the last may reach over the end.
std::int64_t slice_of(const GatherWire& wire, int node_ranks) {
  return (wire.whole() + node_ranks * 16 - 1) / (node_ranks * 16) * 16;
}

std::int64_t count_pieces(const ParameterTable& table, const UnitPlacement& place, int unit, const GatherWire& wire) {
  std::size_t pieces = 0;
  for (int index = 0; index < place.ranks; ++index) {
    pieces += pieces_of(table, place, unit, index, wire, true).size();
  }
  return static_cast<std::int64_t>(pieces);
}

TensorView bytes_of(const TensorView& view) {
  return {view.data, DType::u8, Shape{static_cast<std::int64_t>(view.bytes())}};
}

TensorView typed(const TensorView& bytes, DType dtype) {
  return {bytes.data, dtype, Shape{bytes.elements() / static_cast<std::int64_t>(size_of(dtype))}};
}

TensorView as_row(const TensorView& view) { return view.reshaped({1, view.elements()}); }

// What arrives is the home's own array: nothing lands elsewhere first.
bool lands_at_home(GatherFormat format, DType compute) {
  return (format == plugin::Fsdp::FP32 && compute == DType::f32) ||
         (format == plugin::Fsdp::BF16 && compute == DType::bf16);
}

// What is sent is the owner's own array.
bool leaves_as_stored(GatherFormat format, DType stored) {
  return format == (stored == DType::bf16 ? plugin::Fsdp::BF16 : plugin::Fsdp::FP32);
}

// f32 that come from the host at once, of a unit whose masters are there.
std::int64_t from_host(const UnitPlacement& place, GatherFormat format, DType compute) {
  if (place.ranks == 1 && compute == DType::f32) return 0;  // straight into its home
  const std::int64_t wire = place.segment(UnitSegment::wire).range, small = place.segment(UnitSegment::fp32).range;
  const bool rounded = place.ranks == 1 || format == plugin::Fsdp::BF16;
  return std::max(rounded ? std::min(wire, HostWeights::chunk) : wire, small);
}

}  // namespace

GatherMemory gather_memory(const ParameterTable& table, const Placement& placement, const MeshCoordinates& at,
                           const plugin::Fsdp& config, int node_ranks, DType compute, DType stored,
                           const std::vector<bool>& on_host) {
  GatherMemory memory;
  for (int unit = 0; unit < static_cast<int>(table.units().size()); ++unit) {
    const UnitPlacement& place = placement.unit(unit, at);
    const GatherFormat format = gather_format(config, table.units()[static_cast<std::size_t>(unit)].kind);
    if (on_host[static_cast<std::size_t>(unit)]) {
      memory.from_host = std::max(memory.from_host, aligned(from_host(place, format, compute) * 4));
    }
    if (!is_cut(placement, unit, at)) continue;
    const GatherWire wire = gather_wire(table, place, unit, format);
    const bool copied = is_copied(table, unit, config, node_ranks);
    if (copied) {
      const std::int64_t slice = slice_of(wire, node_ranks);
      memory.node_copies += aligned(slice);
      memory.node_staging = std::max(memory.node_staging, slice * node_ranks);
    }
    const bool direct = !copied && lands_at_home(format, compute);
    if (direct && leaves_as_stored(format, stored)) continue;
    const std::int64_t arrives = direct ? 0 : copied ? slice_of(wire, node_ranks) * node_ranks : wire.parts;
    memory.staging = std::max(memory.staging, aligned(aligned(wire.part) + arrives));
    if (format == plugin::Fsdp::FP8_E4M3) {
      const std::vector<Wire::BlockPiece> own = pieces_of(table, place, unit, placement.part(unit, at), wire, false);
      memory.tables += (count_pieces(table, place, unit, wire) + static_cast<std::int64_t>(own.size())) *
                       static_cast<std::int64_t>(sizeof(Wire::BlockPiece));
    }
  }
  return memory;
}

std::vector<CollectiveUse> gather_exchanges(const ParameterTable& table, const Placement& placement,
                                            const MeshCoordinates& at, const plugin::Fsdp& config, int node_ranks) {
  std::vector<CollectiveUse> uses;
  for (int unit = 0; unit < static_cast<int>(table.units().size()); ++unit) {
    if (!is_cut(placement, unit, at)) continue;
    const UnitPlacement& place = placement.unit(unit, at);
    const GatherFormat format = gather_format(config, table.units()[static_cast<std::size_t>(unit)].kind);
    const GatherWire wire = gather_wire(table, place, unit, format);
    const std::int64_t part = std::max(wire.part, wire.fp32 / place.ranks);
    uses.push_back({axis_name(table, unit), CollectiveKind::all_gather, static_cast<std::uint64_t>(part)});
    if (!is_copied(table, unit, config, node_ranks)) continue;
    uses.push_back({"node", CollectiveKind::all_gather, static_cast<std::uint64_t>(slice_of(wire, node_ranks))});
  }
  return uses;
}

Gatherer::Gatherer(const StartContext& context, const plugin::Fsdp& config, DType compute, DType stored, Slots slots,
                   std::vector<SegmentViews> masters, const std::vector<bool>& on_host, const Regions& regions,
                   int blocks_ahead)
    : table_(context.table),
      node_(context.node),
      device_(context.backend.device()),
      wire_(context.backend.operators().wire),
      compute_(device_.stream(Resource::compute)),
      network_(device_.stream(Resource::network)),
      nvlink_(device_.stream(Resource::nvlink)),
      compute_type_(compute),
      slots_(std::move(slots)),
      blocks_ahead_(blocks_ahead),
      staging_(regions.staging),
      node_staging_(regions.node_staging) {
  for (std::size_t unit = 0; unit < masters.size(); ++unit) {
    const int index = static_cast<int>(unit);
    const UnitPlacement& place = context.placement.unit(index, context.at);
    const bool fetched = has_home(context.placement, index, context.at, compute, stored, on_host[unit]);
    units_.push_back(
        {.axis = &axis_of(context, index),
         .place = place,
         .master = masters[unit],
         .home = fetched ? regions.homes.slice(slots_.offset[unit], home_elements(place, compute)) : TensorView{},
         .fetched = fetched,
         .on_host = on_host[unit],
         .gathered = device_.make_event(),
         .released = device_.make_event()});
  }
  if (std::ranges::find(on_host, true) != on_host.end()) {
    host_ = std::make_unique<HostWeights>(device_, regions.from_host);
  }
  set_up_wire(context, config, regions);
}

void Gatherer::set_up_wire(const StartContext& context, const plugin::Fsdp& config, const Regions& regions) {
  std::int64_t copies = 0;
  for (std::size_t index = 0; index < units_.size(); ++index) {
    Unit& unit = units_[index];
    const int number = static_cast<int>(index);
    if (unit.place.ranks == 1) continue;
    unit.wire = gather_wire(table_, unit.place, number, gather_format(config, table_.units()[index].kind));
    if (!is_copied(table_, number, config, node_.size())) continue;
    const std::int64_t slice = slice_of(unit.wire, node_.size());
    unit.node_copy = regions.node_copies.slice(copies, slice);
    copies += aligned(slice);
  }
  write_tables(context, regions.tables);
}

void Gatherer::write_tables(const StartContext& context, const TensorView& region) {
  std::vector<Wire::BlockPiece> all;
  const auto add = [&](const std::vector<Wire::BlockPiece>& pieces) {
    const auto begin = static_cast<std::int64_t>(all.size());
    all.insert(all.end(), pieces.begin(), pieces.end());
    return TensorView{static_cast<Wire::BlockPiece*>(region.data) + begin, DType::i64,
                      Shape{static_cast<std::int64_t>(pieces.size()), Wire::fields}};
  };
  for (std::size_t index = 0; index < units_.size(); ++index) {
    Unit& unit = units_[index];
    if (unit.place.ranks == 1 || unit.wire.format != plugin::Fsdp::FP8_E4M3) continue;
    const int number = static_cast<int>(index);
    unit.send_table =
        add(pieces_of(table_, unit.place, number, context.placement.part(number, context.at), unit.wire, false));
    std::vector<Wire::BlockPiece> arriving;
    for (int part = 0; part < unit.place.ranks; ++part) {
      for (const Wire::BlockPiece& piece : pieces_of(table_, unit.place, number, part, unit.wire, true)) {
        arriving.push_back(piece);
      }
    }
    unit.receive_table = add(arriving);
  }
  if (all.empty()) return;
  const std::size_t bytes = all.size() * sizeof(Wire::BlockPiece);
  ANANKE_CHECK(bytes <= region.bytes(), "tables of {} bytes for a region of {}", bytes, region.bytes());
  const Buffer host = device_.host_memory().allocate(bytes, "fp8 tables (host)");
  std::memcpy(host.data(), all.data(), bytes);
  device_.copy(network_, region.data, host.data(), bytes);
  network_.synchronize();
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
      if (use.needs_weights) uses_.push_back({use.unit, leg, use.last_use});
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
  if (unit.resident || !unit.fetched) return;
  Stream& stream = unit.copied ? nvlink_ : comes_straight(unit) ? host_->stream() : network_;
  const TraceSpan span(TraceKind::call,
                       [&] { return TraceText{"gather " + table_.units()[static_cast<std::size_t>(use.unit)].name}; });
  for (const int other : slots_.overlaps[static_cast<std::size_t>(use.unit)]) {
    // Also after what is not resident any more: it may have been overwritten by the other stream.
    at(other).resident = false;
    stream.wait(*at(other).released);
  }
  stream.wait(*unit.released);
  gather(unit, !use.last && unit.node_copy);
  stream.record(*unit.gathered);
  unit.resident = true;
}

SegmentViews Gatherer::home_of(const Unit& unit) const {
  return unit.fetched ? segments_in(unit.home, unit.place, compute_type_) : unit.master;
}

bool Gatherer::is_direct(const Unit& unit) const {
  return lands_at_home(unit.wire.format, compute_type_) && !unit.node_copy;
}

// From the host into its home, with nothing to be done on the way.
bool Gatherer::comes_straight(const Unit& unit) const {
  return unit.on_host && unit.place.ranks == 1 && compute_type_ == DType::f32;
}

void Gatherer::gather(Unit& unit, bool keep) {
  if (unit.place.ranks == 1) {
    take_master(unit);
  } else if (unit.copied) {
    gather_from_node(unit);
  } else {
    gather_over_axis(unit, keep);
  }
}

// Of a unit that is not cut, into its home.
void Gatherer::take_master(Unit& unit) {
  if (comes_straight(unit)) {
    const TensorView all = as_one(unit.master);
    host_->copy(all, unit.home);
    unit.host_bytes += all.bytes();
    return;
  }
  const SegmentViews homes = home_of(unit);
  const TensorView& small = homes[UnitSegment::fp32];
  round(unit, unit.master[UnitSegment::wire], homes[UnitSegment::wire]);
  if (small.elements() == 0) return;
  with_master(unit, unit.master[UnitSegment::fp32],
              [&](const TensorView& values) { device_.copy(network_, small.data, values.data, small.bytes()); });
}

// send(values), on the network stream, with values of the master that are on the device.
template <class Send>
void Gatherer::with_master(Unit& unit, const TensorView& values, Send send) {
  if (!unit.on_host) return send(values);
  send(host_->bring(network_, values));
  host_->done(network_);
  unit.host_bytes += values.bytes();
}

void Gatherer::round(Unit& unit, const TensorView& values, const TensorView& to) {
  const std::int64_t all = values.elements(), chunk = unit.on_host ? std::min(all, HostWeights::chunk) : all;
  for (std::int64_t begin = 0; begin < all; begin += chunk) {
    const std::int64_t count = std::min(chunk, all - begin);
    with_master(unit, values.slice(begin, count), [&](const TensorView& part) {
      wire_->to_bf16(network_, {as_row(part), 0, as_row(to.slice(begin, count))});
    });
  }
}

// Segment by segment: what a segment gathers is its array.
void Gatherer::gather_over_axis(Unit& unit, bool keep) {
  const SegmentViews homes = home_of(unit);
  const bool staged = !is_direct(unit), small = unit.place.segment(UnitSegment::fp32).range > 0;
  const TensorView arrived =
      staged ? staging_.slice(aligned(unit.wire.part), unit.node_copy ? unit.wire.whole() : unit.wire.parts)
             : TensorView{};
  const TensorView small_home = bytes_of(homes[UnitSegment::fp32]);
  if (unit.wire.part > 0) {
    const TensorView& master = unit.master[UnitSegment::wire];
    const TensorView to = staged ? arrived.slice(0, unit.wire.parts) : bytes_of(homes[UnitSegment::wire]);
    const auto send = [&](const TensorView& part) { unit.axis->all_gather(network_, bytes_of(part), to); };
    if (leaves_as_stored(unit.wire.format, master.dtype)) {
      with_master(unit, master, send);
    } else {
      const TensorView part = staging_.slice(0, unit.wire.part);
      pack(unit, master, part);
      send(part);
    }
  }
  if (small) {
    with_master(unit, unit.master[UnitSegment::fp32], [&](const TensorView& values) {
      unit.axis->all_gather(network_, bytes_of(values),
                            unit.node_copy ? arrived.slice(unit.wire.parts, unit.wire.fp32) : small_home);
    });
  }
  if (staged) unpack(network_, unit, arrived);
  if (keep) {
    const std::int64_t slice = unit.node_copy.elements();
    const TensorView kept = staging_.slice(aligned(unit.wire.part) + node_.rank() * slice, slice);
    device_.copy(network_, unit.node_copy.data, kept.data, kept.bytes());
    unit.copied = true;
  }
  unit.bytes +=
      static_cast<std::uint64_t>((unit.wire.part + unit.wire.fp32 / unit.place.ranks) * (unit.place.ranks - 1));
}

void Gatherer::gather_from_node(Unit& unit) {
  nvlink_.wait(*unit.gathered);  // the copy was made by then, on the network stream
  const std::int64_t slice = unit.node_copy.elements();
  const TensorView arrived = node_staging_.slice(0, slice * node_.size());
  node_.all_gather(nvlink_, unit.node_copy, arrived);
  unpack(nvlink_, unit, arrived);
  unit.node_bytes += static_cast<std::uint64_t>(slice * (node_.size() - 1));
}

void Gatherer::pack(Unit& unit, const TensorView& values, const TensorView& part) {
  if (unit.wire.format == plugin::Fsdp::BF16) return round(unit, values, typed(part, DType::bf16));
  with_master(unit, values, [&](const TensorView& there) { wire_->quantise(network_, unit.send_table, there, part); });
}

// parts: what arrived of the wire segment and, where the node keeps a copy, behind it of the fp32 segment.
void Gatherer::unpack(Stream& stream, const Unit& unit, const TensorView& parts) {
  const SegmentViews homes = home_of(unit);
  const TensorView& home = homes[UnitSegment::wire];
  const TensorView arrived = parts.slice(0, unit.wire.parts);
  if (home.elements() > 0) {
    if (lands_at_home(unit.wire.format, compute_type_)) {
      device_.copy(stream, home.data, arrived.data, home.bytes());
    } else if (unit.wire.format == plugin::Fsdp::FP32) {
      wire_->to_bf16(stream, {as_row(typed(arrived, DType::f32)), 0, as_row(home)});
    } else if (unit.wire.format == plugin::Fsdp::BF16) {
      wire_->from_bf16(stream, typed(arrived, DType::bf16), home);
    } else {
      wire_->dequantise(stream, unit.receive_table, arrived, home);
    }
  }
  const TensorView& small = homes[UnitSegment::fp32];
  if (unit.node_copy && small.elements() > 0) {
    device_.copy(stream, small.data, parts.slice(unit.wire.parts, unit.wire.fp32).data, small.bytes());
  }
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
  return home_of(at(unit));
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
    if (what.on_host) {
      lines.push_back({Resource::host_to_device, "host", unit, Direction::weights, what.host_bytes});
    }
    if (what.place.ranks == 1) continue;
    lines.push_back({Resource::network, axis_name(table_, unit), unit, Direction::gather, what.bytes});
    if (what.node_copy) lines.push_back({Resource::nvlink, "node", unit, Direction::gather, what.node_bytes});
  }
  return lines;
}

void Gatherer::drop() {
  for (Unit& unit : units_) unit.resident = unit.copied = false;
}

}  // namespace ananke::fsdp
