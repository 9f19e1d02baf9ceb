// What each rank has to compute in a step, and how long it takes for it: so that a record tells rows that cost unevenly
// from nodes that are slow. Values travel over all ranks with the targets of the next step (StepScalars, `shared`).
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "runtime/roles/batches.h"

namespace ananke {

class ParameterTable;
class StepRecord;

class StepWork {
 public:
  StepWork(const ParameterTable& table, int rank, int ranks);
  static std::int64_t slots(int ranks) { return 3 * std::int64_t{ranks}; }

  // At a step's begin: what this rank tells the others about these rows and about the step before. `busy` is the
  // device's busy_seconds() here and in end(). Holds until the next call.
  std::span<const double> begin(const Rows& rows, std::optional<double> busy);
  void end(std::optional<double> busy);
  // The values of all ranks, summed, into the record of the step that begin() was called for; its `seconds` are set.
  void report(std::span<const double> all, StepRecord& record);

  // FLOPs of rows, forward and backward: {all but attention, attention}.
  struct Flops {
    double rest = 0, attention = 0;
  };
  Flops flops(const Rows& rows) const;

 private:
  double per_token_, per_square_;
  std::size_t rank_, ranks_;
  std::vector<double> mine_;         // per rank: {rest, attention, seconds of the step before}; 0 but for this rank's
  std::vector<double> work_before_;  // of each rank; empty: there was no step before
  double seconds_before_ = 0;        // that the step before took
  std::optional<double> busy_at_begin_, seconds_;
};

}  // namespace ananke
