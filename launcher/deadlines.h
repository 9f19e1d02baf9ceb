// A site's deadlines as numbers.
#pragma once

#include <chrono>

#include "runtime/control/control_server.h"

namespace ananke {

class Job;
class Site;

// Throws Error(config) where a text is no duration; a site that was loaded has none such.
ControlDeadlines control_deadlines(const Site& site);
std::chrono::milliseconds grace_of(const Site& site);
// The job's, the site's where it says nothing, ours where neither does. Throws Error(config) for a factor that would
// take a step for a standstill.
StallLimits stall_limits(const Site& site, const Job& job);

}  // namespace ananke
