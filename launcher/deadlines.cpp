#include "launcher/deadlines.h"

#include "ananke/site.pb.h"
#include "runtime/base/units.h"

namespace ananke {

ControlDeadlines control_deadlines(const Site& site) {
  const Deadlines& texts = site.deadlines();
  return {.join = parse_duration(texts.join()),
          .exchange = parse_duration(texts.exchange()),
          .heartbeat = parse_duration(texts.heartbeat()),
          .step = parse_duration(texts.step())};
}

std::chrono::milliseconds grace_of(const Site& site) { return parse_duration(site.deadlines().grace()); }

}  // namespace ananke
