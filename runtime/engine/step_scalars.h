// The few numbers of a step that all ranks must agree on. They live on the device: the host reads them once, at the
// step's end.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/roles/backend.h"

namespace ananke {

class StepScalars {
 public:
  // `more`: f64 values of somebody else that the one read of a step brings along. `shared`: others that are summed over
  // ranks together with the targets.
  StepScalars(Backend& backend, Communicator& world, std::int64_t more = 0, std::int64_t shared = 0);
  static std::vector<PlanLine> plan(std::int64_t more = 0, std::int64_t shared = 0);
  static std::vector<CollectiveUse> exchanges(std::int64_t shared = 0);

  // Before the first backward: sums the ranks' target counts; loss_scale() becomes 1 / that. Clears loss and square
  // sum.
  void begin(std::int64_t valid_targets, bool stop_requested);
  // The same in three calls, for whoever has work between them: clears and takes this rank's count; puts the sum on the
  // network stream; orders the compute stream behind it and makes loss_scale().
  void clear(std::int64_t valid_targets, bool stop_requested, std::span<const double> shared = {});
  void sum_targets();
  void make_loss_scale();
  // After the last reduction: sums losses, square sums and stop requests; decides clip scale and finiteness.
  void agree(double clip_norm);

  TensorView loss() const { return values_.view(DType::f64, {1}, 0); }
  TensorView square_sum() const { return values_.view(DType::f64, {1}, sizeof(double)); }
  // f64 [2]: {auxiliary loss, z-loss} of the routers, per valid target: what they add to loss x loss_scale.
  TensorView router_losses() const { return values_.view(DType::f64, {2}, 3 * sizeof(double)); }
  TensorView more() const { return values_.view(DType::f64, {more_}, own_bytes()); }
  TensorView loss_scale() const { return small_.view(DType::f32, {1}, 0); }  // 1 / valid targets
  TensorView clip_scale() const { return small_.view(DType::f32, {1}, 256); }
  TensorView finite() const { return small_.view(DType::i32, {1}, 512); }

  struct Outcome {
    double loss_sum = 0;  // nats, over all valid targets
    double gradient_norm = 0;
    double auxiliary_loss = 0, z_loss = 0;  // per valid target, coefficients included
    std::int64_t valid_targets = 0;
    bool stop = false;  // some rank was asked to stop
    bool finite = false;
    std::vector<double> shared, more;
    double loss() const { return valid_targets ? loss_sum / static_cast<double>(valid_targets) : 0; }
  };
  // The one device read of a step.
  Outcome read();

 private:
  void all_reduce(const TensorView& values);
  TensorView targets() const { return values_.view(DType::f64, {1}, 5 * sizeof(double)); }
  std::size_t own_bytes() const { return static_cast<std::size_t>(6 + shared_) * sizeof(double); }
  Backend& backend_;
  Communicator& world_;
  std::int64_t more_, shared_;
  // values_: f64 {loss, square sum, stop, auxiliary loss, z-loss, valid targets, shared, more}
  Buffer host_, values_, small_;
  std::unique_ptr<Event> before_, after_;
};

}  // namespace ananke
