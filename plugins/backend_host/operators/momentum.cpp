#include "plugins/backend_host/operators/momentum.h"

#include "plugins/backend_host/host_stream.h"
#include "runtime/operators/arguments.h"

namespace ananke::host {
namespace {

constexpr std::int64_t elements_per_task = 1 << 14;

// From `start` to `end` by `weight`, from the nearer side, as torch does.
inline float lerp(float start, float end, float weight) {
  return weight < 0.5f ? start + weight * (end - start) : end - (end - start) * (1 - weight);
}

void accumulate_range(std::int64_t n, const float* gradient, float scale, float mu, float mix, bool nesterov,
                      float* momentum, float* out) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = gradient[i] * scale;
    const float m = lerp(momentum[i], g, mix);
    momentum[i] = m;
    out[i] = nesterov ? lerp(g, m, mu) : m;
  }
}

}  // namespace

void HostMomentum::accumulate(Stream& stream, const Accumulate& a) {
  const std::int64_t n = arguments::check(a);
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    if (*a.finite.as<std::int32_t>() == 0) return;
    const float scale = *a.scale.as<float>();
    pool.run_blocks(n, elements_per_task, [&](std::int64_t begin, std::int64_t end) {
      accumulate_range(end - begin, a.gradient.as<float>() + begin, scale, static_cast<float>(a.mu),
                       static_cast<float>(1 - a.mu), a.nesterov, a.momentum.as<float>() + begin,
                       a.out.as<float>() + begin);
    });
  });
}

void HostMomentum::apply(Stream& stream, const Apply& a) {
  const std::int64_t n = arguments::check(a);
  HostStream::of(stream).enqueue([&pool = pool_, n, a] {
    if (*a.finite.as<std::int32_t>() == 0) return;
    const auto keep = static_cast<float>(a.keep), rate = static_cast<float>(a.rate);
    pool.run_blocks(n, elements_per_task, [&](std::int64_t begin, std::int64_t end) {
      float* weight = a.weight.as<float>();
      const float* direction = a.direction.as<float>();
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) weight[i] = weight[i] * keep - rate * direction[i];
    });
  });
}

}  // namespace ananke::host
