#include "runtime/engine/step_scalars.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/error.h"

namespace ananke {
namespace {

constexpr std::int64_t own_values = 6;
constexpr std::size_t value_bytes = sizeof(double);
constexpr std::size_t small_bytes = 768;  // three scalars, each aligned

}  // namespace

StepScalars::StepScalars(Backend& backend, Communicator& world, std::int64_t more, std::int64_t shared)
    : backend_(backend),
      world_(world),
      more_(more),
      shared_(shared),
      host_(backend.device().host_memory().allocate(own_bytes(), "step scalars (host)")),
      values_(backend.device().memory().allocate(own_bytes() + static_cast<std::size_t>(more) * value_bytes,
                                                 "step scalars")),
      small_(backend.device().memory().allocate(small_bytes, "step scalars")),
      before_(backend.device().make_event()),
      after_(backend.device().make_event()) {}

std::vector<PlanLine> StepScalars::plan(std::int64_t more, std::int64_t shared) {
  const auto own = static_cast<std::uint64_t>(own_values + shared) * value_bytes;
  return {{"step scalars", Place::device, own + static_cast<std::uint64_t>(more) * value_bytes + small_bytes},
          {"step scalars (host)", Place::host, own}};
}

std::vector<CollectiveUse> StepScalars::exchanges(std::int64_t shared) {
  return {{"world", CollectiveKind::all_reduce, static_cast<std::uint64_t>(own_values + shared) * value_bytes}};
}

void StepScalars::begin(std::int64_t valid_targets, bool stop_requested) {
  clear(valid_targets, stop_requested);
  sum_targets();
  make_loss_scale();
}

void StepScalars::clear(std::int64_t valid_targets, bool stop_requested, std::span<const double> shared) {
  ANANKE_CHECK(shared.empty() || static_cast<std::int64_t>(shared.size()) == shared_, "{} shared values, made for {}",
               shared.size(), shared_);
  Device& device = backend_.device();
  Stream& compute = device.stream(Resource::compute);
  auto* host = host_.view(DType::f64, {own_values + shared_}).as<double>();
  host[0] = host[1] = host[3] = host[4] = 0;
  host[2] = stop_requested ? 1 : 0;
  host[5] = static_cast<double>(valid_targets);  // exact below 2^53
  std::fill_n(host + own_values, shared_, 0.0);
  std::copy(shared.begin(), shared.end(), host + own_values);
  device.copy(compute, values_.data(), host, own_bytes());
}

void StepScalars::sum_targets() { all_reduce(values_.view(DType::f64, {1 + shared_}, (own_values - 1) * value_bytes)); }

void StepScalars::make_loss_scale() {
  Stream& compute = backend_.device().stream(Resource::compute);
  compute.wait(*after_);
  backend_.operators().elementwise->reciprocal(compute, targets(), loss_scale());
}

void StepScalars::agree(double clip_norm) {
  all_reduce(values_.view(DType::f64, {5}));
  backend_.device().stream(Resource::compute).wait(*after_);
  backend_.operators().elementwise->clip(backend_.device().stream(Resource::compute),
                                         {square_sum(), loss(), clip_norm, clip_scale(), finite()});
}

void StepScalars::all_reduce(const TensorView& values) {
  Stream& compute = backend_.device().stream(Resource::compute);
  Stream& network = backend_.device().stream(Resource::network);
  compute.record(*before_);
  network.wait(*before_);
  world_.all_reduce(network, values, Reduction::sum);
  network.record(*after_);
}

StepScalars::Outcome StepScalars::read() {
  std::vector<double> values(static_cast<std::size_t>(own_values + shared_ + more_));
  backend_.device().read(values_.view(DType::f64, {own_values + shared_ + more_}), values.data());
  Outcome outcome;
  outcome.loss_sum = values[0];
  outcome.gradient_norm = std::sqrt(values[1]);
  outcome.stop = values[2] > 0;
  outcome.auxiliary_loss = values[3];
  outcome.z_loss = values[4];
  outcome.valid_targets = static_cast<std::int64_t>(values[5]);
  outcome.finite = std::isfinite(values[0]) && std::isfinite(values[1]);
  outcome.shared.assign(values.begin() + own_values, values.end() - more_);
  outcome.more.assign(values.end() - more_, values.end());
  return outcome;
}

}  // namespace ananke
