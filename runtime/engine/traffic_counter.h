// What the roles' cumulative traffic lines have grown by, for the step record: units of one kind together, so that a
// record stays short whatever the number of layers.
#pragma once

#include <map>
#include <string>
#include <tuple>

#include "runtime/model/parameter_table.h"
#include "runtime/roles/traffic.h"

namespace ananke {

class StepRecord;

class TrafficCounter {
 public:
  // `table` outlives the counter.
  explicit TrafficCounter(const ParameterTable& table) : table_(table) {}
  // Adds to `record` what was received since the call before, lines without bytes left out; sets its gather_bytes and
  // reduce_bytes to the sums of those directions. `traffic`: the lines of all roles.
  void report(const Traffic& traffic, StepRecord& record);

 private:
  using Key = std::tuple<Resource, std::string, std::string, Direction>;  // axis, kind of unit
  const ParameterTable& table_;
  std::map<Key, std::uint64_t> before_;
};

}  // namespace ananke
