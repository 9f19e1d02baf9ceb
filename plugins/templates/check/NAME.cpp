// Check plugin @NAME@: how busy the node is before a job begins. runtime/roles/check.h is the contract.
#include <cstdio>

#include "ananke/site.pb.h"
#include "runtime/base/kernel_text.h"
#include "runtime/base/read_file.h"
#include "runtime/health/findings.h"
#include "runtime/plugin/descriptor.h"

namespace ananke {
namespace {

class @CLASS@Check final : public Check {
 public:
  explicit @CLASS@Check(const RoleContext&) {}

  std::vector<CheckSpec> checks() const override {
    return {{.id = "@NAME@.load",
             .description = "processes that run or wait for a disk, by the minute",
             .thresholds = {{"load", "", false, {}, 4.0, "an idle node has about none"}},
             .sensors = {"proc/loadavg"}}};
  }

  CheckResult run(const std::string&, const CheckContext& context) override {
    Findings found(context);
    const std::string text = read_file(context.root / "proc/loadavg").value_or("");
    double load = 0;
    if (std::sscanf(text.c_str(), "%lf", &load) != 1) {
      found.unknown("/proc/loadavg cannot be read");
    } else {
      found.number("load", "", load, "");
      found.judge("load", load, fmt::format("the load is {}", load), "see who computes here (top)");
    }
    return found.result(fmt::format("the load is {}", load));
  }
};

}  // namespace

ANANKE_PLUGIN(Check, @CLASS@Check);

}  // namespace ananke
