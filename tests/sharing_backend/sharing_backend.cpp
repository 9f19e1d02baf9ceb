#include <algorithm>
#include <map>

#include "runtime/base/error.h"
#include "runtime/engine/inner_role.h"
#include "runtime/plugin/descriptor.h"
#include "sharing_backend.pb.h"
#include "tests/sharing_backend/sharing_communicator.h"

namespace ananke {
namespace {

RoleContext alone(RoleContext context) {
  context.node_ranks = 1;
  context.local_rank = 0;  // the first device is everybody's
  return context;
}

class SharingBackend final : public Backend {
 public:
  SharingBackend(const RoleContext& context, const plugin::SharingBackend& config)
      : rank_(context.rank),
        as_device_(config.as_device()),
        inner_(make_inner<Backend>(config.over(), alone(context))) {}
  bool computes_in(DType type) const override { return inner_->computes_in(type); }
  bool stores_in(DType type) const override { return inner_->stores_in(type); }
  std::string determinism() const override { return inner_->determinism(); }
  bool computes_on_host() const override { return !as_device_ && inner_->computes_on_host(); }
  std::vector<PlanLine> plan(std::span<const CollectiveUse> largest) const override { return inner_->plan(largest); }
  std::vector<PlanLine> in_use() override { return inner_->in_use(); }
  std::optional<DeviceRoom> room() override { return inner_->room(); }
  void trace(Trace* trace) override { inner_->trace(trace); }
  Device& device() override { return inner_->device(); }
  const OperatorSet& operators() override { return inner_->operators(); }

  // The first member makes the hub. Two exchanges: nobody leaves before all have it.
  std::unique_ptr<Communicator> make_communicator(const std::string& name, std::span<const int> ranks,
                                                  Rendezvous& rendezvous) override {
    const auto own = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
    const auto size = static_cast<int>(ranks.size());
    auto hub = std::make_shared<testing::Hub>(size);
    if (size > 1) {
      const std::string key = fmt::format("sharing/{}/{}/{}", name, fmt::join(ranks, ","), made_[name]++);
      const auto all = rendezvous.exchange(key, ranks, std::to_string(reinterpret_cast<std::uintptr_t>(&hub)));
      const auto first = *reinterpret_cast<const std::shared_ptr<testing::Hub>*>(std::stoull(all[0]));
      rendezvous.exchange(key + "/met", ranks, "");
      hub = first;
    }
    return std::make_unique<testing::SharingCommunicator>(std::move(hub), own, size, device());
  }

 private:
  const int rank_;
  const bool as_device_;
  std::map<std::string, int> made_;
  std::unique_ptr<Backend> inner_;
};

}  // namespace

ANANKE_PLUGIN(Backend, SharingBackend, plugin::SharingBackend);

}  // namespace ananke
