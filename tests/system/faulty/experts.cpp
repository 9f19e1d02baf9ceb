#include "runtime/model/local_experts.h"
#include "runtime/plugin/descriptor.h"
#include "tests/system/faulty/experts.pb.h"

namespace ananke {
namespace {

using Fault = plugin::FaultyExperts;

class FaultyExperts final : public LocalExperts {
 public:
  FaultyExperts(const RoleContext&, const plugin::FaultyExperts& config) : fault_(config.fault()) {}
  int chunks() const override { return fault_ == Fault::NO_CHUNKS ? 0 : 1; }
  std::int64_t capacity(const ExpertSizes& s) const override {
    return fault_ == Fault::NEGATIVE_CAPACITY ? -1 : LocalExperts::capacity(s);
  }
  std::size_t workspace(const ExpertSizes& s) const override {
    return fault_ == Fault::HUGE_WORKSPACE ? std::size_t{1} << 60 : LocalExperts::workspace(s);
  }
  std::vector<PlanLine> plan(const ExpertSizes&) const override {
    return {{fault_ == Fault::NAMELESS_PLAN ? "" : "nothing", Place::device, 0}};
  }
  // Rows of an expert that does not exist: what computes with them finds it.
  void dispatch_end(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) override {
    if (fault_ == Fault::SHORT_CHUNK) {
      ExpertChunk wrong = chunk;
      wrong.offsets = chunk.offsets.slice(0, 1);
      LocalExperts::dispatch_end(compute, a, wrong);
    } else {
      LocalExperts::dispatch_end(compute, a, chunk);
    }
  }

 private:
  Fault::Fault fault_;
};

}  // namespace

ANANKE_PLUGIN(Experts, FaultyExperts, plugin::FaultyExperts);

}  // namespace ananke
