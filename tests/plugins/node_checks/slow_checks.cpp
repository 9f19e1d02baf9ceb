// Check plugin "slow_checks": looks at GPUs, and never comes to an end.
#include <unistd.h>

#include "runtime/plugin/descriptor.h"
#include "runtime/roles/check.h"

namespace ananke {

class SlowChecks final : public Check {
 public:
  explicit SlowChecks(const RoleContext&) {}
  std::vector<CheckSpec> checks() const override {
    return {{.id = "gpu.slow",
             .description = "never ends",
             .deadline = std::chrono::milliseconds(50),
             .when_late = FAIL,
             .sensors = {"gpus"}}};
  }
  CheckResult run(const std::string&, const CheckContext&) override {
    for (;;) pause();
  }
};

ANANKE_PLUGIN(Check, SlowChecks);

}  // namespace ananke
