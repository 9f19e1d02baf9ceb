#include "runtime/engine/step_work.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "ananke/telemetry.pb.h"
#include "runtime/base/error.h"
#include "runtime/model/parameter_table.h"

namespace ananke {
namespace {

// The largest of the values over their mean, and whose it is; 1 where all are 0.
std::pair<double, std::size_t> largest_of(const std::vector<double>& values) {
  const auto largest = std::max_element(values.begin(), values.end());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  return {mean > 0 ? *largest / mean : 1, static_cast<std::size_t>(largest - values.begin())};
}

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Who takes longest for the same work. A rank without any has nothing to be slow at.
void report_straggler(const std::vector<double>& seconds, const std::vector<double>& work, WorkRecord& out) {
  std::vector<double> paces;
  for (std::size_t rank = 0; rank < seconds.size(); ++rank) {
    paces.push_back(work[rank] > 0 ? seconds[rank] / work[rank] : 0);
  }
  const auto slowest = std::max_element(paces.begin(), paces.end());
  const double median = median_of(paces);
  out.set_straggler(median > 0 ? *slowest / median : 1);
  out.set_straggler_rank(static_cast<std::uint32_t>(slowest - paces.begin()));
}

}  // namespace

StepWork::StepWork(const ParameterTable& table, int rank, int ranks)
    : per_token_(table.flops_per_token(0)),
      per_square_(table.flops_per_token(1) - table.flops_per_token(0)),
      rank_(static_cast<std::size_t>(rank)),
      ranks_(static_cast<std::size_t>(ranks)),
      mine_(static_cast<std::size_t>(slots(ranks)), 0.0) {}

StepWork::Flops StepWork::flops(const Rows& rows) const {
  double squares = 0;
  for (const std::vector<std::int32_t>& begins : rows.segments) {
    for (std::size_t s = 0; s < begins.size(); ++s) {
      const std::int64_t end = s + 1 < begins.size() ? begins[s + 1] : rows.row_length;
      const auto length = static_cast<double>(end - begins[s]);
      squares += length * length;
    }
  }
  return {per_token_ * static_cast<double>(rows.rows * rows.row_length), per_square_ * squares};
}

std::span<const double> StepWork::begin(const Rows& rows, std::optional<double> busy) {
  const Flops work = flops(rows);
  mine_[3 * rank_] = work.rest;
  mine_[3 * rank_ + 1] = work.attention;
  mine_[3 * rank_ + 2] = seconds_.value_or(0);
  busy_at_begin_ = busy;
  return mine_;
}

void StepWork::end(std::optional<double> busy) {
  seconds_.reset();
  if (busy && busy_at_begin_) seconds_ = *busy - *busy_at_begin_;
}

void StepWork::report(std::span<const double> all, StepRecord& record) {
  ANANKE_CHECK(all.size() == mine_.size(), "{} values for {} ranks", all.size(), ranks_);
  std::vector<double> work(ranks_), seconds(ranks_);
  double rest = 0, attention = 0;
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    rest += all[3 * rank];
    attention += all[3 * rank + 1];
    work[rank] = all[3 * rank] + all[3 * rank + 1];
    seconds[rank] = all[3 * rank + 2];
  }
  WorkRecord& out = *record.mutable_work();
  const auto [largest, largest_rank] = largest_of(work);
  out.set_largest(largest);
  out.set_largest_rank(static_cast<std::uint32_t>(largest_rank));
  out.set_attention(rest + attention > 0 ? attention / (rest + attention) : 0);
  const bool timed = std::all_of(seconds.begin(), seconds.end(), [](double s) { return s > 0; });
  if (timed && !work_before_.empty()) {
    const auto [slowest, slowest_rank] = largest_of(seconds);
    const double mean =
        std::accumulate(work_before_.begin(), work_before_.end(), 0.0) / static_cast<double>(work_before_.size());
    out.set_slowest(slowest);
    out.set_slowest_rank(static_cast<std::uint32_t>(slowest_rank));
    out.set_slowest_work(mean > 0 ? work_before_[slowest_rank] / mean : 1);
    report_straggler(seconds, work_before_, out);
    const double computing = std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(ranks_);
    if (seconds_before_ > 0) out.set_waiting(std::clamp(1 - computing / seconds_before_, 0.0, 1.0));
  }
  work_before_ = std::move(work);
  seconds_before_ = record.seconds();
}

}  // namespace ananke
