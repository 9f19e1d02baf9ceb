#include <algorithm>
#include <map>
#include <optional>

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

// Its time is no clock's: a second for each read of the host, of which every step has one; on a slow rank two.
class CountingDevice final : public Device {
 public:
  CountingDevice(Device& inner, double seconds) : inner_(inner), seconds_(seconds) {}
  std::string description() const override { return inner_.description(); }
  int numa_node() const override { return inner_.numa_node(); }
  Arena& memory() override { return inner_.memory(); }
  Arena& host_memory() override { return inner_.host_memory(); }
  Stream& stream(Resource resource) override { return inner_.stream(resource); }
  std::unique_ptr<Event> make_event() override { return inner_.make_event(); }
  std::unique_ptr<Event> make_timer() override { return inner_.make_timer(); }
  void copy(Stream& stream, void* to, const void* from, std::size_t bytes) override {
    inner_.copy(stream, to, from, bytes);
  }
  void zero(Stream& stream, void* to, std::size_t bytes) override { inner_.zero(stream, to, bytes); }
  void read(const TensorView& from, void* to) override { inner_.read(from, to); }
  std::uint64_t reads() const override { return inner_.reads(); }
  MemoryUse memory_use() override { return inner_.memory_use(); }
  std::optional<double> busy_seconds() override { return seconds_ * static_cast<double>(inner_.reads()); }

 private:
  Device& inner_;
  double seconds_;
};

class SharingBackend final : public Backend {
 public:
  SharingBackend(const RoleContext& context, const plugin::SharingBackend& config)
      : rank_(context.rank),
        as_device_(config.as_device()),
        inner_(make_inner<Backend>(config.over(), alone(context))) {
    if (config.has_slow_rank()) {
      counting_.emplace(inner_->device(), static_cast<int>(config.slow_rank()) == rank_ ? 2 : 1);
    }
  }
  bool computes_in(DType type) const override { return inner_->computes_in(type); }
  bool stores_in(DType type) const override { return inner_->stores_in(type); }
  std::string determinism() const override { return inner_->determinism(); }
  bool computes_on_host() const override { return !as_device_ && inner_->computes_on_host(); }
  std::vector<PlanLine> plan(std::span<const CollectiveUse> largest) const override { return inner_->plan(largest); }
  std::vector<PlanLine> in_use() override { return inner_->in_use(); }
  std::optional<DeviceRoom> room() override { return inner_->room(); }
  void trace(Trace* trace) override { inner_->trace(trace); }
  Device& device() override { return counting_ ? static_cast<Device&>(*counting_) : inner_->device(); }
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
  std::optional<CountingDevice> counting_;
};

}  // namespace

ANANKE_PLUGIN(Backend, SharingBackend, plugin::SharingBackend);

}  // namespace ananke
