#include "faulty_activations.pb.h"
#include "runtime/engine/resident_activations.h"
#include "runtime/plugin/descriptor.h"
#include "tests/system/faulty/misbehave.h"

namespace ananke {
namespace {

class FaultyActivations final : public ResidentActivations {
 public:
  FaultyActivations(const RoleContext& context, const plugin::FaultyActivations& config) : trouble_(context, config) {}
  std::vector<PlanLine> plan(std::int64_t inputs, std::size_t bytes) const override {
    if (trouble_.is("plan", "no purpose")) return {{"", Place::host, 1}};
    if (trouble_.is("plan", "huge")) return {{"block inputs", Place::host, std::uint64_t{1} << 60}};
    return ResidentActivations::plan(inputs, bytes);
  }
  void start(Device& device, int blocks, int microbatches, std::size_t bytes) override {
    trouble_.enter("start");
    compute_ = &device.stream(Resource::compute);
    ResidentActivations::start(device, blocks, microbatches, bytes);
  }
  void* place(int block, int microbatch) override {
    trouble_.enter("place", *compute_);
    return trouble_.is("place", "nothing") ? nullptr : ResidentActivations::place(block, microbatch);
  }
  void* take(int block, int microbatch) override {
    trouble_.enter("take", *compute_);
    if (trouble_.is("take", "wild")) return reinterpret_cast<void*>(0x100);
    return trouble_.is("take", "nothing") ? nullptr : ResidentActivations::take(block, microbatch);
  }

 private:
  Trouble trouble_;
  Stream* compute_ = nullptr;
};

}  // namespace

ANANKE_PLUGIN(Activations, FaultyActivations, plugin::FaultyActivations);

}  // namespace ananke
