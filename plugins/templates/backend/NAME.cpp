// Backend plugin @NAME@: the host backend with a residual + RMS norm of its own, in plain loops: the place to try a
// kernel in whole training jobs. runtime/roles/backend.h and runtime/operators/ are the contracts.
//
// A backend is a whole device: memory, streams, ten operators, communicators. This one is made of another and replaces
// what it wants to: any operator, or the device or the communicators by classes that pass on what they do not change.
#include <cmath>

#include "@NAME@.pb.h"
#include "runtime/engine/inner_role.h"
#include "runtime/plugin/descriptor.h"
#include "runtime/roles/backend.h"

namespace ananke {
namespace {

// Operators put work on the stream and return; the work holds copies of the arguments, whose memory stays.
class @CLASS@Norm final : public AddRmsNorm {
 public:
  // Bytes that forward keeps for backward, and scratch of both: none, backward computes the norm again.
  std::size_t saved(const Sizes&) const override { return 0; }
  std::size_t workspace(const Sizes&) const override { return 0; }

  void forward(Stream& stream, const Forward& a) override {
    stream.run_on_host([a] {
      const std::int64_t rows = a.x.shape[0], width = a.x.shape[1];
      for (std::int64_t t = 0; t < rows; ++t) {
        const float* h = a.x.as<float>() + t * width;
        if (a.h && (a.delta || a.h.data != a.x.data)) {
          float* sum = a.h.as<float>() + t * width;
          for (std::int64_t j = 0; j < width; ++j) sum[j] = h[j] + (a.delta ? a.delta.as<float>()[t * width + j] : 0);
          h = sum;
        }
        const float r = inverse_rms(h, width, a.eps);
        for (std::int64_t j = 0; j < width; ++j) a.y.as<float>()[t * width + j] = h[j] * r * a.weight.as<float>()[j];
      }
    });
  }

  // With n = h r and g = dy weight:  dh = dh_in + r (g - n mean(g n)),  dweight += dy n.
  void backward(Stream& stream, const Backward& a) override {
    stream.run_on_host([a] {
      const std::int64_t rows = a.h.shape[0], width = a.h.shape[1];
      const float* weight = a.weight.as<float>();
      for (std::int64_t t = 0; t < rows; ++t) {
        const float *h = a.h.as<float>() + t * width, *dy = a.dy.as<float>() + t * width;
        const float r = inverse_rms(h, width, a.eps);
        double mean = 0;
        for (std::int64_t j = 0; j < width; ++j) mean += dy[j] * weight[j] * h[j] * r;
        mean /= static_cast<double>(width);
        for (std::int64_t j = 0; j < width; ++j) {
          const float other = a.dh_in ? a.dh_in.as<float>()[t * width + j] : 0;  // may be dh itself
          a.dweight.as<float>()[j] += dy[j] * h[j] * r;
          a.dh.as<float>()[t * width + j] = other + r * (dy[j] * weight[j] - h[j] * r * static_cast<float>(mean));
        }
      }
    });
  }

 private:
  static float inverse_rms(const float* h, std::int64_t width, double eps) {
    double squares = 0;
    for (std::int64_t j = 0; j < width; ++j) squares += static_cast<double>(h[j]) * h[j];
    return static_cast<float>(1 / std::sqrt(squares / static_cast<double>(width) + eps));
  }
};

class @CLASS@Backend final : public Backend {
 public:
  @CLASS@Backend(const RoleContext& context, const plugin::@CLASS@& config)
      : base_(make_inner<Backend>(config.base(), context, config.base_config())) {}

  bool computes_on_host() const override { return base_->computes_on_host(); }
  std::vector<PlanLine> plan(std::span<const CollectiveUse> largest) const override { return base_->plan(largest); }
  std::vector<PlanLine> in_use() override { return base_->in_use(); }
  std::optional<DeviceRoom> room() override { return base_->room(); }
  Device& device() override { return base_->device(); }
  const OperatorSet& operators() override {
    operators_ = base_->operators();
    operators_.add_rms_norm = &norm_;
    return operators_;
  }
  std::unique_ptr<Communicator> make_communicator(const std::string& name, std::span<const int> ranks,
                                                  Rendezvous& rendezvous) override {
    return base_->make_communicator(name, ranks, rendezvous);
  }

 private:
  @CLASS@Norm norm_;  // before the base, whose streams may still hold work of it when they end
  std::unique_ptr<Backend> base_;
  OperatorSet operators_;
};

}  // namespace

ANANKE_PLUGIN(Backend, @CLASS@Backend, plugin::@CLASS@);

}  // namespace ananke
