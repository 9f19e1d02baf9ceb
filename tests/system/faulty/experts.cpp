#include "faulty_experts.pb.h"
#include "runtime/model/local_experts.h"
#include "runtime/plugin/descriptor.h"
#include "tests/system/faulty/misbehave.h"

namespace ananke {
namespace {

class FaultyExperts final : public LocalExperts {
 public:
  FaultyExperts(const RoleContext& context, const plugin::FaultyExperts& config) : trouble_(context, config) {}
  int chunks() const override { return trouble_.is("chunks", "none") ? 0 : 1; }
  std::int64_t capacity(const ExpertSizes& s) const override {
    return trouble_.is("capacity", "negative") ? -1 : LocalExperts::capacity(s);
  }
  std::size_t workspace(const ExpertSizes& s) const override {
    return trouble_.is("workspace", "huge") ? std::size_t{1} << 60 : LocalExperts::workspace(s);
  }
  std::vector<PlanLine> plan(const ExpertSizes&) const override {
    return {{trouble_.is("plan", "no purpose") ? "" : "nothing", Place::device, 0}};
  }
  void begin(Stream& compute, const ExpertExchange& a) override {
    trouble_.enter("begin", compute);
    LocalExperts::begin(compute, a);
  }
  // Rows of an expert that does not exist: what computes with them finds it.
  void dispatch_end(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) override {
    if (trouble_.is("dispatch_end", "short chunk")) {
      ExpertChunk wrong = chunk;
      wrong.offsets = chunk.offsets.slice(0, 1);
      LocalExperts::dispatch_end(compute, a, wrong);
    } else {
      LocalExperts::dispatch_end(compute, a, chunk);
    }
  }
  void dispatch_backward_end(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) override {
    trouble_.enter("dispatch_backward_end", compute);
    LocalExperts::dispatch_backward_end(compute, a, chunk);
  }

 private:
  Trouble trouble_;
};

}  // namespace

ANANKE_PLUGIN(Experts, FaultyExperts, plugin::FaultyExperts);

}  // namespace ananke
