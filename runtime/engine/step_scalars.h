// The few numbers of a step that all ranks must agree on. They live on the device: the host reads them once, at the
// step's end.
#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/roles/backend.h"

namespace ananke {

class StepScalars {
 public:
  StepScalars(Backend& backend, Communicator& world);
  static std::vector<PlanLine> plan();

  // Before the first backward: sums the ranks' target counts; scale() becomes 1 / that. Clears loss and square sum.
  void begin(std::int64_t valid_targets, bool stop_requested);
  // After the last reduction: sums loss, square sums and stop requests; decides clip scale and finiteness.
  void agree(double clip_norm);

  TensorView loss() const { return values_.view(DType::f64, {1}, 0); }
  TensorView square_sum() const { return values_.view(DType::f64, {1}, sizeof(double)); }
  TensorView loss_scale() const { return small_.view(DType::f32, {1}, 0); }  // 1 / valid targets
  TensorView clip_scale() const { return small_.view(DType::f32, {1}, 256); }
  TensorView finite() const { return small_.view(DType::i32, {1}, 512); }

  struct Outcome {
    double loss_sum = 0;  // nats, over all valid targets
    double gradient_norm = 0;
    std::int64_t valid_targets = 0;
    bool stop = false;  // some rank was asked to stop
    bool finite = false;
    double loss() const { return valid_targets ? loss_sum / static_cast<double>(valid_targets) : 0; }
  };
  // The one device read of a step.
  Outcome read();

 private:
  void all_reduce(const TensorView& values);
  Backend& backend_;
  Communicator& world_;
  Buffer host_, values_, small_;  // values_: f64 {loss, square sum, stop, valid targets}
  std::unique_ptr<Event> before_, after_;
};

}  // namespace ananke
