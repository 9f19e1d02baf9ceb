#include "runtime/data/packing_costs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/base/error.h"

namespace ananke {
namespace {

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Of values against their numbers.
double correlation_of(const std::vector<double>& values) {
  const double mean = mean_of(values), middle = static_cast<double>(values.size() - 1) / 2;
  double together = 0, squares = 0, places = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double value = values[i] - mean, place = static_cast<double>(i) - middle;
    together += value * place;
    squares += value * value;
    places += place * place;
  }
  return squares > 0 && places > 0 ? together / std::sqrt(squares * places) : 0;
}

}  // namespace

StepCosts::StepCosts(std::int64_t rows_per_step, std::int64_t ranks, double row_length, double break_even)
    : rows_per_step_(static_cast<std::size_t>(rows_per_step)),
      constant_(break_even * row_length),
      ranks_(static_cast<std::size_t>(ranks), 0.0) {
  ANANKE_CHECK(ranks > 0 && rows_per_step > 0 && rows_per_step % ranks == 0, "{} rows for {} ranks", rows_per_step,
               ranks);
}

void StepCosts::add_row(std::uint64_t squares) {
  ranks_[rows_ % ranks_.size()] += static_cast<double>(squares) + constant_;
  if (++rows_ < rows_per_step_) return;
  const double mean = mean_of(ranks_);
  worst_.push_back(*std::max_element(ranks_.begin(), ranks_.end()) / mean);
  means_.push_back(mean);
  std::fill(ranks_.begin(), ranks_.end(), 0.0);
  rows_ = 0;
}

StepCosts::Spread StepCosts::spread() const {
  Spread spread;
  spread.steps = worst_.size();
  if (worst_.empty()) return spread;
  std::vector<double> sorted = worst_;
  std::sort(sorted.begin(), sorted.end());
  const auto quantile = [&](double q) {  // the smallest value that a share q of the steps does not exceed
    const double rank = std::ceil(q * static_cast<double>(sorted.size()));
    return sorted[static_cast<std::size_t>(std::max(rank, 1.0)) - 1];
  };
  spread.mean = mean_of(worst_);
  spread.median = quantile(0.5);
  spread.p99 = quantile(0.99);
  spread.largest = sorted.back();
  spread.correlation = correlation_of(means_);
  return spread;
}

}  // namespace ananke
