#include "runtime/roles/optimizer.h"

#include <unistd.h>

#include <cstdlib>
#include <limits>
#include <stdexcept>

#include "runtime/plugin/descriptor.h"
#include "tests/system/faulty/optimizer.pb.h"

namespace ananke {
namespace {

using Fault = plugin::FaultyOptimizer;

[[gnu::noinline]] void crash() {
  volatile int* volatile nothing = nullptr;
  *nothing = 1;
}

void hang() {
  for (;;) pause();
}

class FaultyOptimizer final : public Optimizer {
 public:
  FaultyOptimizer(const RoleContext&, const plugin::FaultyOptimizer& config) : fault_(config.fault()) {
    if (fault_ == Fault::CRASH_IN_CONSTRUCTOR) crash();
  }
  OptimizerLayout layout(const Parameter&) const override { return OptimizerLayout::any_fragment; }
  double cost(const Parameter&) const override { return 1; }
  std::vector<StateTensor> states(const Parameter&) const override {
    if (fault_ == Fault::STATE_WITHOUT_NAME) return {{""}};
    return {};
  }
  double learning_rate() const override {
    return fault_ == Fault::NO_LEARNING_RATE ? std::numeric_limits<double>::quiet_NaN() : 1;
  }
  void update(Stream& stream, const OperatorSet&, const OptimizerUpdate&) override {
    switch (fault_) {
      case Fault::THROW: throw std::runtime_error("a word of its own");
      case Fault::THROW_INT: throw 7;
      case Fault::PEER_LOST: fail(ErrorKind::worker_failed, "rank 3 is gone");
      case Fault::CRASH: crash(); break;
      case Fault::ABORT: std::abort();
      case Fault::HANG: hang(); break;
      case Fault::THROW_ON_STREAM: stream.run_on_host([] { throw std::runtime_error("a word of its own"); }); break;
      case Fault::CRASH_ON_STREAM: stream.run_on_host(crash); break;
      case Fault::HANG_ON_STREAM: stream.run_on_host(hang); break;
      default: break;
    }
  }

 private:
  Fault::Fault fault_;
};

}  // namespace

ANANKE_PLUGIN(Optimizer, FaultyOptimizer, plugin::FaultyOptimizer);

}  // namespace ananke
