#include "runtime/engine/traffic_counter.h"

#include "ananke/telemetry.pb.h"

namespace ananke {

const char* name_of(Direction direction) noexcept {
  switch (direction) {
    case Direction::gather: return "gather";
    case Direction::reduce: return "reduce";
    case Direction::counts: return "counts";
    case Direction::dispatch: return "dispatch";
    case Direction::combine: return "combine";
    case Direction::dispatch_backward: return "dispatch_backward";
    case Direction::combine_backward: return "combine_backward";
    case Direction::redistribute: return "redistribute";
    case Direction::weights: return "weights";
    case Direction::gradients: return "gradients";
    case Direction::update: return "update";
  }
  return "unknown";
}

std::uint64_t bytes_of(const Traffic& traffic, Direction direction) noexcept {
  std::uint64_t bytes = 0;
  for (const TrafficLine& line : traffic) bytes += line.direction == direction ? line.bytes : 0;
  return bytes;
}

void TrafficCounter::report(const Traffic& traffic, StepRecord& record) {
  std::map<Key, std::uint64_t> now;
  for (const TrafficLine& line : traffic) {
    const char* kind = line.unit < 0 ? "none" : name_of(table_.units()[static_cast<std::size_t>(line.unit)].kind);
    now[{line.resource, line.axis, kind, line.direction}] += line.bytes;
  }
  std::uint64_t gathered = 0, reduced = 0;
  for (const auto& [key, bytes] : now) {
    const auto& [resource, axis, kind, direction] = key;
    const std::uint64_t grown = bytes - before_[key];
    if (direction == Direction::gather) gathered += grown;
    if (direction == Direction::reduce) reduced += grown;
    if (grown == 0) continue;
    TrafficRecord& line = *record.add_traffic();
    line.set_resource(name_of(resource));
    line.set_axis(axis);
    line.set_unit(kind);
    line.set_direction(name_of(direction));
    line.set_bytes(grown);
  }
  record.set_gather_bytes(gathered);
  record.set_reduce_bytes(reduced);
  before_ = std::move(now);
}

}  // namespace ananke
