// Activations plugin: which blocks' inputs are moved (layout.h), and where the others stay. Their way: window.h.
#include <algorithm>
#include <memory>

#include "ananke/job.pb.h"
#include "plugins/activation_offload/activation_offload.pb.h"
#include "plugins/activation_offload/layout.h"
#include "plugins/activation_offload/window.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/units.h"
#include "runtime/device/numa.h"
#include "runtime/plugin/descriptor.h"
#include "runtime/roles/activations.h"
#include "runtime/roles/compute_type.h"

namespace ananke {
namespace {

using activation_offload::Layout;
using activation_offload::Settings;
using activation_offload::Shape;
using activation_offload::Window;

class ActivationOffload final : public Activations {
 public:
  ActivationOffload(const RoleContext& context, const plugin::ActivationOffload& config)
      : layers_(static_cast<int>(context.job.model().num_hidden_layers())),
        hidden_(context.job.model().hidden_size()),
        compute_(compute_type(context.job)),
        rank_(context.rank) {
    settings_.fraction = config.fraction();
    const Resolved& resolved = context.job.resolved();
    if (resolved.has_offload_fraction()) settings_.fraction = std::min(config.fraction(), resolved.offload_fraction());
    if (config.has_window()) settings_.window = parse_bytes(config.window());
    if (config.has_budget()) settings_.budget = parse_bytes(config.budget());
    settings_.fp8 = config.wire() == plugin::ActivationOffload::FP8;
  }
  ~ActivationOffload() override;

  std::vector<PlanLine> plan(std::int64_t inputs, std::size_t bytes) const override;
  double offload_fraction() const override { return settings_.fraction; }
  bool rounds() const override { return settings_.fp8 && settings_.fraction > 0; }
  void use(const OperatorSet& operators) override { wire_ = operators.wire; }
  void start(Device& device, int blocks, int microbatches, std::size_t bytes) override;
  void begin(const Schedule& schedule) override;
  void* place(int block, int microbatch) override;
  void keep(int block, int microbatch) override;
  void* take(int block, int microbatch) override;
  void forget(int block, int microbatch) override;
  ActivationTraffic traffic() override;

 private:
  // Blocks are the embedding, whose input nobody keeps, the layers and the head.
  int blocks() const { return layers_ + 2; }
  Shape shape_of(int microbatches, std::size_t bytes) const {
    return {layers_, microbatches, bytes, hidden_, compute_};
  }
  // Number of a moved block's input; -1: it stays.
  int moved(int block, int microbatch) const;
  void* resident(int block, int microbatch) const;
  void tell(Device& device, const Shape& shape) const;

  Settings settings_;
  const int layers_;
  const std::int64_t hidden_;
  const DType compute_;
  const int rank_;
  Wire* wire_ = nullptr;
  Device* device_ = nullptr;
  Layout layout_;
  std::vector<int> moved_, resident_;  // by block, their number of each kind, or -1
  Buffer residents_;
  std::unique_ptr<Window> window_;  // null: nothing is moved
};

ActivationOffload::~ActivationOffload() {
  if (!device_) return;  // memory outlives the work on it, also when a step ends by an error
  for (const Resource resource : {Resource::device_to_host, Resource::host_to_device, Resource::compute}) {
    try {
      device_->stream(resource).synchronize();
    } catch (...) {  // whoever ran the step has been told
    }
  }
}

std::vector<PlanLine> ActivationOffload::plan(std::int64_t inputs, std::size_t bytes) const {
  const Layout layout = make_layout(settings_, shape_of(static_cast<int>(inputs / blocks()), bytes));
  std::vector<PlanLine> lines = {{"block inputs", Place::device, layout.device_inputs()}};
  if (layout.moved.empty()) return lines;
  lines.push_back({"block inputs (host)", Place::host, layout.host()});
  if (layout.fp8) lines.push_back({"block inputs on their way", Place::device, layout.device_wire()});
  return lines;
}

void ActivationOffload::start(Device& device, int blocks, int microbatches, std::size_t bytes) {
  ANANKE_CHECK(blocks == this->blocks() && !device_, "activation_offload starts with {} blocks of a model of {} layers",
               blocks, layers_);
  device_ = &device;
  const Shape shape = shape_of(microbatches, bytes);
  layout_ = make_layout(settings_, shape);
  moved_.assign(static_cast<std::size_t>(blocks), -1);
  resident_ = moved_;
  for (std::size_t i = 0; i < layout_.moved.size(); ++i) {
    moved_[static_cast<std::size_t>(layout_.moved[i]) + 1] = static_cast<int>(i);
  }
  int residents = 0;
  for (std::size_t block = 1; block < moved_.size(); ++block) {
    if (moved_[block] < 0) resident_[block] = residents++;
  }
  residents_ =
      device.memory().allocate(static_cast<std::size_t>(residents * microbatches) * layout_.stride, "block inputs");
  if (!layout_.moved.empty()) window_ = std::make_unique<Window>(device, wire_, layout_, shape);
  tell(device, shape);
}

void ActivationOffload::tell(Device& device, const Shape& shape) const {
  if (rank_ == 0) log_info("activation_offload: {}", describe(layout_, settings_, shape));
  if (!window_) return;
  NumaPages pages;
  for (const Buffer& slab : window_->slabs()) pages += numa_pages(slab.data(), slab.bytes());
  bool wrong = false;
  const std::string verdict = numa_verdict(pages, device.numa_node(), wrong);
  const std::string text =
      fmt::format("activation_offload: {} of host memory {}", format_bytes(layout_.host()), verdict);
  if (wrong) {
    log_warning(
        "{}; copies are slower over the link between nodes: see that the node has room, and that ranks are "
        "bound to the node of their device",
        text);
  } else {
    log_info("{}", text);
  }
}

void ActivationOffload::begin(const Schedule& schedule) {
  if (!window_) return;
  std::vector<int> takes;
  for (const Item& item : schedule) {
    const int number = item.phase == Phase::backward ? moved(item.block, item.microbatch % layout_.microbatches) : -1;
    if (number >= 0) takes.push_back(number);
  }
  window_->begin(std::move(takes));
}

int ActivationOffload::moved(int block, int microbatch) const {
  ANANKE_CHECK(block >= 0 && block < blocks() && microbatch >= 0 && microbatch < layout_.microbatches,
               "input of block {}, microbatch {}", block, microbatch);
  const int index = moved_[static_cast<std::size_t>(block)];
  return index < 0 ? -1 : index * layout_.microbatches + microbatch;
}

void* ActivationOffload::resident(int block, int microbatch) const {
  const int index = resident_[static_cast<std::size_t>(block)];
  ANANKE_CHECK(index >= 0, "the embedding has no input that is kept");
  const auto at = static_cast<std::size_t>(index * layout_.microbatches + microbatch);
  return static_cast<std::byte*>(residents_.data()) + at * layout_.stride;
}

void* ActivationOffload::place(int block, int microbatch) {
  const int number = moved(block, microbatch);
  return number < 0 ? resident(block, microbatch) : window_->place(number);
}

void ActivationOffload::keep(int block, int microbatch) {
  const int number = moved(block, microbatch);
  if (number >= 0) window_->keep(number);
}

void* ActivationOffload::take(int block, int microbatch) {
  const int number = moved(block, microbatch);
  if (number >= 0) return window_->take(number);
  if (window_) window_->fetch_ahead();
  return resident(block, microbatch);
}

void ActivationOffload::forget(int block, int microbatch) {
  const int number = moved(block, microbatch);
  if (number >= 0) window_->forget(number);
}

ActivationTraffic ActivationOffload::traffic() {
  if (!window_) return {};
  window_->clock().collect();
  return {window_->bytes_out(), window_->bytes_in(), window_->clock().seconds(activation_offload::CopyClock::copies),
          window_->clock().seconds(activation_offload::CopyClock::stalls)};
}

}  // namespace

ANANKE_PLUGIN(Activations, ActivationOffload, plugin::ActivationOffload);

}  // namespace ananke
