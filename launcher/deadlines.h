// A site's deadlines as numbers.
#pragma once

#include <chrono>

#include "runtime/control/control_server.h"

namespace ananke {

class Site;

// Throws Error(config) where a text is no duration; a site that was loaded has none such.
ControlDeadlines control_deadlines(const Site& site);
std::chrono::milliseconds grace_of(const Site& site);

}  // namespace ananke
