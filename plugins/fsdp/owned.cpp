#include "plugins/fsdp/owned.h"

#include "runtime/base/error.h"

namespace ananke::fsdp {
namespace {

std::int64_t bytes_in(const UnitPlacement& place, UnitSegment which, DType stored) {
  const DType type = which == UnitSegment::wire ? stored : DType::f32;
  return place.segment(which).range * static_cast<std::int64_t>(size_of(type));
}

void* begin_of(const SegmentViews& owned) {
  const TensorView& wire = owned[UnitSegment::wire];
  return wire.elements() > 0 ? wire.data : owned[UnitSegment::fp32].data;
}

}  // namespace

OwnedRanges owned_ranges(const ParameterTable& table, const Placement& placement, const MeshCoordinates& at,
                         DType stored, const std::vector<bool>& on_host) {
  OwnedRanges ranges;
  for (int unit = 0; unit < static_cast<int>(table.units().size()); ++unit) {
    const UnitPlacement& place = placement.unit(unit, at);
    std::int64_t& end = on_host[static_cast<std::size_t>(unit)] ? ranges.host_bytes : ranges.bytes;
    ranges.begin.push_back(end);
    end += bytes_in(place, UnitSegment::wire, stored) + bytes_in(place, UnitSegment::fp32, stored);
  }
  return ranges;
}

SegmentViews owned_in(const Buffer& memory, std::int64_t begin, const UnitPlacement& place, DType stored) {
  const std::int64_t behind = begin + bytes_in(place, UnitSegment::wire, stored);
  SegmentViews views;
  views.given = true;
  views.segments[index_of(UnitSegment::wire)] =
      memory.view(stored, {place.segment(UnitSegment::wire).range}, static_cast<std::size_t>(begin));
  views.segments[index_of(UnitSegment::fp32)] =
      memory.view(DType::f32, {place.segment(UnitSegment::fp32).range}, static_cast<std::size_t>(behind));
  return views;
}

SegmentViews ranges_of(const TensorView& range, const UnitPlacement& place) {
  SegmentViews views;
  views.given = true;
  for (const UnitSegment which : {UnitSegment::wire, UnitSegment::fp32}) {
    views.segments[index_of(which)] = range.slice(place.range_begin(which), place.segment(which).range);
  }
  return views;
}

TensorView fragment_in(const SegmentViews& owned, const Fragment& fragment) {
  const TensorView& wire = owned[UnitSegment::wire];
  if (fragment.offset_in_range < wire.elements()) return wire.slice(fragment.offset_in_range, fragment.count);
  return owned[UnitSegment::fp32].slice(fragment.offset_in_range - wire.elements(), fragment.count);
}

TensorView as_one(const SegmentViews& owned) {
  const TensorView &wire = owned[UnitSegment::wire], &small = owned[UnitSegment::fp32];
  ANANKE_CHECK(wire.dtype == DType::f32, "ranges of {} and f32 are no one array", name_of(wire.dtype));
  return {begin_of(owned), DType::f32, {wire.elements() + small.elements()}};
}

TensorView bytes_of(const SegmentViews& owned) {
  const std::size_t bytes = owned[UnitSegment::wire].bytes() + owned[UnitSegment::fp32].bytes();
  return {begin_of(owned), DType::u8, {static_cast<std::int64_t>(bytes)}};
}

}  // namespace ananke::fsdp
