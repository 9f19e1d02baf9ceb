// Experts plugin @NAME@: the built-in local experts, watched. runtime/roles/experts.h is the contract.
#include <algorithm>

#include "@NAME@.pb.h"
#include "runtime/base/log.h"
#include "runtime/model/local_experts.h"
#include "runtime/plugin/descriptor.h"
#include "runtime/roles/experts.h"

namespace ananke {
namespace {

// The busiest expert's load over the mean load: 1 is even, the number of experts the worst.
void report(std::uint64_t exchange, const TensorView& counts) {
  const auto* count = counts.as<std::int32_t>();
  std::int64_t sum = 0, most = 0;
  for (std::int64_t e = 0; e < counts.elements(); ++e) {
    sum += count[e];
    most = std::max<std::int64_t>(most, count[e]);
  }
  if (sum == 0) return;
  log_info("@NAME@: exchange {}: the busiest expert has {:.2f} times the mean load", exchange,
           static_cast<double>(most * counts.elements()) / static_cast<double>(sum));
}

class @CLASS@Experts final : public LocalExperts {
 public:
  @CLASS@Experts(const RoleContext&, const plugin::@CLASS@& config) : config_(config) {}

  // Of every forward and backward of a layer, before its tokens are grouped. Every other call may be overridden too.
  void begin(Stream& compute, const ExpertExchange& a) override {
    ++exchanges_;
    if (config_.report_every() != 0 && exchanges_ % config_.report_every() == 0) {
      compute.run_on_host([exchange = exchanges_, counts = a.routing.counts] { report(exchange, counts); });
    }
    LocalExperts::begin(compute, a);
  }

 private:
  plugin::@CLASS@ config_;
  std::uint64_t exchanges_ = 0;
};

}  // namespace

ANANKE_PLUGIN(Experts, @CLASS@Experts, plugin::@CLASS@);

}  // namespace ananke
