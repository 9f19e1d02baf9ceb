// Which nodes differ from the others, and from what they were. Robust: by median and median absolute deviation (MAD),
// so that the bad ones do not hide themselves; corrected for the number of comparisons, so that of many nodes not
// always one is accused. Pure.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ananke/health.pb.h"
#include "ananke/site.pb.h"

namespace ananke {

double median_of(std::vector<double> values);  // NaN of none

// z with which a normal variable is above z with probability p; 0 < p <= 0.5.
double normal_tail(double p);

struct Outlier {
  std::size_t at = 0;  // index of the value
  double median = 0;
  double percent = 0;     // by which it is worse than the median
  double deviations = 0;  // the same in robust standard deviations, 1.4826 MAD but at least 0.5% of the median
};
// Values that are worse than the median by so many deviations that among `tests` comparisons of healthy values one such
// is found with a probability of 1%, and by more than `least_percent`. Fewer than 8 values say nothing.
std::vector<Outlier> find_outliers(std::span<const double> values, bool low_is_bad, std::size_t tests,
                                   double least_percent);

// Adds to every node that was asked the check "peers": values that are to be compared against those of all nodes, and
// texts and numbers that should be equal everywhere against the majority's. Threshold: percent, fail 15, warn 5.
void compare_with_peers(HealthReport* report, const Site& site);

// Adds the check "history" to the nodes with 5 earlier reports or more (oldest first): each value against the node's
// own median, likewise.
void compare_with_history(HealthReport* report, const std::map<std::string, std::vector<NodeHealth>>& earlier,
                          const Site& site);

}  // namespace ananke
