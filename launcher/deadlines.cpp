#include "launcher/deadlines.h"

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"

namespace ananke {

ControlDeadlines control_deadlines(const Site& site) {
  const Deadlines& texts = site.deadlines();
  return {.join = parse_duration(texts.join()),
          .exchange = parse_duration(texts.exchange()),
          .heartbeat = parse_duration(texts.heartbeat()),
          .step = parse_duration(texts.step()),
          .stalls = {}};
}

StallLimits stall_limits(const Site& site, const Job& job) {
  constexpr double least_factor = 2;
  Stalls wanted = site.stalls();
  wanted.MergeFrom(job.stalls());
  StallLimits limits;
  if (wanted.has_factor()) limits.factor = wanted.factor();
  if (wanted.has_least()) limits.least = parse_duration(wanted.least());
  if (wanted.has_steps()) limits.steps = static_cast<int>(wanted.steps());
  if (wanted.has_stacks()) limits.stacks = parse_duration(wanted.stacks());
  if (limits.factor > 0 && limits.factor < least_factor) {
    fail(ErrorKind::config,
         "stalls.factor of the {} is {}: a step that takes a little longer than others would end the job; set it to {} "
         "or more, or to 0 to leave it to deadlines.step",
         job.stalls().has_factor() ? "job" : "site", limits.factor, least_factor);
  }
  return limits;
}

std::chrono::milliseconds grace_of(const Site& site) { return parse_duration(site.deadlines().grace()); }

}  // namespace ananke
