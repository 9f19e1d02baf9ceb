// Activations plugin @NAME@: keeps block inputs in host memory. runtime/roles/activations.h is the contract.
//
// On the device a moved block has one of two places, even blocks one and odd blocks the other: a block reads its input
// while it writes the next one's. All copies are on the compute stream, so a place is free as soon as it is kept.
#include <algorithm>

#include "@NAME@.pb.h"
#include "ananke/job.pb.h"
#include "runtime/plugin/descriptor.h"
#include "runtime/roles/activations.h"

namespace ananke {
namespace {

class @CLASS@Activations final : public Activations {
 public:
  // Blocks are the embedding, the layers and the head.
  @CLASS@Activations(const RoleContext& context, const plugin::@CLASS@& config)
      : blocks_(static_cast<int>(context.job.model().num_hidden_layers()) + 2),
        moved_(static_cast<int>(std::min<std::uint64_t>(config.moved_blocks(), static_cast<std::uint64_t>(blocks_)))) {}

  std::vector<PlanLine> plan(std::int64_t inputs, std::size_t bytes) const override {
    const auto microbatches = static_cast<std::size_t>(inputs / blocks_);
    return {{"block inputs", Place::device, device_places() * microbatches * aligned(bytes)},
            {"block inputs (host)", Place::host, host_places() * microbatches * aligned(bytes)}};
  }

  void start(Device& device, int, int microbatches, std::size_t bytes) override {
    device_ = &device;
    bytes_ = bytes;
    microbatches_ = static_cast<std::size_t>(microbatches);
    on_device_ = device.memory().allocate(device_places() * microbatches_ * aligned(bytes), "block inputs");
    on_host_ = device.host_memory().allocate(host_places() * microbatches_ * aligned(bytes), "block inputs (host)");
  }

  void* place(int block, int microbatch) override {
    return at(on_device_, block < moved_ ? block % 2 : 2 + block - moved_, microbatch);
  }
  void keep(int block, int microbatch) override {
    if (block < moved_) copy(at(on_host_, block, microbatch), place(block, microbatch));
  }
  void* take(int block, int microbatch) override {
    if (block < moved_) copy(place(block, microbatch), at(on_host_, block, microbatch));
    return place(block, microbatch);
  }
  void forget(int, int) override {}

 private:
  static std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }
  std::size_t device_places() const { return static_cast<std::size_t>(2 + blocks_ - moved_); }
  std::size_t host_places() const { return static_cast<std::size_t>(moved_); }
  void* at(const Buffer& buffer, int place, int microbatch) const {
    const std::size_t index = static_cast<std::size_t>(place) * microbatches_ + static_cast<std::size_t>(microbatch);
    return static_cast<std::byte*>(buffer.data()) + index * aligned(bytes_);
  }
  void copy(void* to, const void* from) { device_->copy(device_->stream(Resource::compute), to, from, bytes_); }

  int blocks_, moved_;
  Device* device_ = nullptr;
  std::size_t bytes_ = 0, microbatches_ = 0;
  Buffer on_device_, on_host_;
};

}  // namespace

ANANKE_PLUGIN(Activations, @CLASS@Activations, plugin::@CLASS@);

}  // namespace ananke
