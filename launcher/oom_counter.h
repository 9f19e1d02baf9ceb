// How many processes of this control group the kernel has killed for want of memory: tells an out-of-memory kill from
// any other SIGKILL.
#pragma once

#include <cstdint>
#include <optional>

namespace ananke {

// Empty where the kernel does not say (no cgroup v2).
std::optional<std::uint64_t> count_oom_kills();

}  // namespace ananke
