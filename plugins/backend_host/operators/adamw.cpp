#include "plugins/backend_host/operators/adamw.h"

#include <cmath>

#include "plugins/backend_host/host_stream.h"
#include "runtime/operators/arguments.h"

namespace ananke::host {
namespace {

constexpr std::int64_t elements_per_task = 1 << 14;

// What is computed once per call, in f64, and then used in f32, as torch does.
struct Factors {
  float keep, mix1, beta2, mix2, rate, correction, eps;
};

Factors factors_of(const AdamWUpdate::Arguments& a) {
  const double step = static_cast<double>(a.step);
  return {static_cast<float>(1 - a.lr * a.weight_decay),
          static_cast<float>(1 - a.beta1),
          static_cast<float>(a.beta2),
          static_cast<float>(1 - a.beta2),
          static_cast<float>(a.lr / (1 - std::pow(a.beta1, step))),
          static_cast<float>(std::sqrt(1 - std::pow(a.beta2, step))),
          static_cast<float>(a.eps)};
}

void update_range(const Factors& f, std::int64_t n, const float* gradient, float scale, float* weight, float* exp_avg,
                  float* exp_avg_sq) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = gradient[i] * scale;
    const float m = exp_avg[i] + f.mix1 * (g - exp_avg[i]);
    const float v = f.beta2 * exp_avg_sq[i] + f.mix2 * g * g;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    weight[i] = weight[i] * f.keep - f.rate * m / (std::sqrt(v) / f.correction + f.eps);
  }
}

}  // namespace

void HostAdamW::update(Stream& stream, const Arguments& a) {
  const std::int64_t n = arguments::check(a);
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    if (*a.finite.as<std::int32_t>() == 0) return;
    const Factors factors = factors_of(a);
    const float scale = *a.scale.as<float>();
    pool.run_blocks(n, elements_per_task, [&](std::int64_t begin, std::int64_t end) {
      update_range(factors, end - begin, a.gradient.as<float>() + begin, scale, a.weight.as<float>() + begin,
                   a.exp_avg.as<float>() + begin, a.exp_avg_sq.as<float>() + begin);
    });
  });
}

}  // namespace ananke::host
