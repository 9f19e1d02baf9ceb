#include "plugins/backend_host/operators/router_balance.h"

#include <algorithm>
#include <numeric>

#include "plugins/backend_host/host_stream.h"
#include "runtime/operators/arguments.h"
#include "runtime/operators/router.h"

namespace ananke::host {
namespace {

using Sizes = arguments::BalanceSizes;

void update_layer(std::int64_t experts, const double* counts, double rate, float* bias) {
  const double sum = std::accumulate(counts, counts + experts, 0.0), number = static_cast<double>(experts);
  // Counts are whole numbers below 2^53 / experts: compared exactly.
  const auto delta = [&](std::int64_t e) {
    const double scaled = counts[e] * number;
    return rate * (static_cast<double>(sum > scaled) - static_cast<double>(sum < scaled));
  };
  double shift = 0;
  for (std::int64_t e = 0; e < experts; ++e) shift += delta(e);
  shift /= number;
  for (std::int64_t e = 0; e < experts; ++e) {
    bias[e] = static_cast<float>(static_cast<double>(bias[e]) + (delta(e) - shift));
  }
}

void write_factors(const Sizes& n, const RouterBalance::Factors& a) {
  const auto* statistics = a.statistics.as<double>();
  const auto* total = a.total.as<double>();
  auto* factors = a.factors.as<float>();
  auto* losses = a.losses.as<double>();
  const double tokens = total[n.experts], rows = tokens * static_cast<double>(n.layers);
  const double share = total[n.experts + 1] * static_cast<double>(*a.scale.as<float>());
  std::fill_n(factors, n.experts + 1, 0.0f);
  if (rows == 0) return;
  const double weight = a.auxiliary_coefficient * static_cast<double>(n.experts) / rows / rows * share;
  for (std::int64_t e = 0; e < n.experts; ++e) {
    const double factor = weight * total[e];
    factors[e] = static_cast<float>(factor);
    for (std::int64_t l = 0; l < n.layers; ++l) losses[0] += factor * statistics[l * n.row + n.experts + e];
  }
  const double factor = a.z_coefficient / tokens * share;
  factors[n.experts] = static_cast<float>(factor);
  for (std::int64_t l = 0; l < n.layers; ++l) losses[1] += factor * statistics[l * n.row + 2 * n.experts];
}

}  // namespace

void HostRouterBalance::collect(Stream& stream, const Collect& a) {
  const Sizes n = arguments::check(a);
  HostStream::of(stream).enqueue([n, a] {
    const auto* statistics = a.statistics.as<double>();
    auto* total = a.total.as<double>();
    std::fill_n(total, n.experts, 0.0);
    for (std::int64_t l = 0; l < n.layers; ++l) {
      for (std::int64_t e = 0; e < n.experts; ++e) total[e] += statistics[l * n.row + e];
    }
    total[n.experts] = static_cast<double>(a.tokens);
    total[n.experts + 1] = static_cast<double>(a.targets);
  });
}

void HostRouterBalance::factors(Stream& stream, const Factors& a) {
  const Sizes n = arguments::check(a);
  HostStream::of(stream).enqueue([n, a] { write_factors(n, a); });
}

void HostRouterBalance::load(Stream& stream, const Load& a) {
  const Sizes n = arguments::check(a);
  const std::int64_t microbatches = a.statistics.shape[0];
  HostStream::of(stream).enqueue([n, microbatches, a] {
    auto* load = a.load.as<double>();
    std::fill_n(load, n.layers * (n.experts + 1), 0.0);
    for (std::int64_t i = 0; i < microbatches * n.layers; ++i) {
      const double* from = a.statistics.as<double>() + i * n.row;
      double* to = load + i % n.layers * (n.experts + 1);
      for (std::int64_t e = 0; e < n.experts; ++e) to[e] += from[e];
      to[n.experts] += from[2 * n.experts + 1];
    }
  });
}

void HostRouterBalance::update_bias(Stream& stream, const UpdateBias& a) {
  const Sizes n = arguments::check(a);
  HostStream::of(stream).enqueue([n, a] {
    if (*a.finite.as<std::int32_t>() == 0) return;
    for (std::int64_t l = 0; l < n.layers; ++l) {
      update_layer(n.experts, a.load.as<double>() + l * n.row, static_cast<double>(a.rate.as<float>()[l]),
                   a.bias.as<float>() + l * n.experts);
    }
  });
}

void HostRouterBalance::summarise(Stream& stream, const Summarise& a) {
  const Sizes n = arguments::check(a);
  HostStream::of(stream).enqueue([n, a] {
    for (std::int64_t l = 0; l < n.layers; ++l) {
      const double* load = a.load.as<double>() + l * n.row;
      double* out = a.summary.as<double>() + l * summary_size;
      const auto [least, most] = std::minmax_element(load, load + n.experts);
      out[0] = *least;
      out[1] = *most;
      out[2] = std::accumulate(load, load + n.experts, 0.0);
      out[3] = load[n.experts];
      out[4] = out[5] = 0;
      if (!a.bias) continue;
      const float* bias = a.bias.as<float>() + l * n.experts;
      const auto [lowest, highest] = std::minmax_element(bias, bias + n.experts);
      out[4] = static_cast<double>(*lowest);
      out[5] = static_cast<double>(*highest);
    }
  });
}

}  // namespace ananke::host
