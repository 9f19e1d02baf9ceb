#include "plugins/backend_host/operators/elementwise.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>

#include "plugins/backend_host/host_stream.h"
#include "plugins/backend_host/operators/row_math.h"
#include "runtime/operators/arguments.h"
#include "runtime/operators/reference/elementwise.h"

namespace ananke::host {
namespace {

constexpr std::int64_t elements_per_task = 1 << 15;
constexpr std::int64_t most_partial_sums = 64;  // they live on the stack of the work

}  // namespace

void HostElementwise::add(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& y) {
  arguments::check_add(a, b, y);
  HostStream::of(stream).enqueue([&pool = pool_, a, b, y] {
    const float* first = a.as<float>();
    const float* second = b.as<float>();
    float* to = y.as<float>();
    pool.run_blocks(y.elements(), elements_per_task, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd  // y may be a or b, never shifted against them
      for (std::int64_t i = begin; i < end; ++i) to[i] = first[i] + second[i];
    });
  });
}

void HostElementwise::square_sum(Stream& stream, const TensorView& x, const TensorView& sum) {
  arguments::check_square_sum(x, sum);
  HostStream::of(stream).enqueue([&pool = pool_, x, sum] {
    const std::int64_t n = x.elements();
    const std::int64_t block = std::max(elements_per_task, (n + most_partial_sums - 1) / most_partial_sums);
    std::array<double, most_partial_sums> partial{};
    const float* from = x.as<float>();
    pool.run_blocks(n, block, [&](std::int64_t begin, std::int64_t end) {
      partial[static_cast<std::size_t>(begin / block)] = dot(from + begin, from + begin, end - begin);
    });
    double total = 0;
    for (double value : partial) total += value;
    *sum.as<double>() += total;
  });
}

void HostElementwise::add_in_order(Stream& stream, const TensorView& terms, const TensorView& sum) {
  arguments::check_add_in_order(terms, sum);
  HostStream::of(stream).enqueue([terms, sum] {
    for (std::int64_t i = 0; i < terms.elements(); ++i) *sum.as<double>() += terms.as<double>()[i];
  });
}

void HostElementwise::reciprocal(Stream& stream, const TensorView& x, const TensorView& y) {
  arguments::check_reciprocal(x, y);
  HostStream::of(stream).enqueue([x, y] {
    const double value = *x.as<double>();
    *y.as<float>() = value == 0 ? 0.0f : static_cast<float>(1 / value);
  });
}

void HostElementwise::clip(Stream& stream, const Clip& a) {
  arguments::check(a);
  HostStream::of(stream).enqueue([a] {
    const double norm = std::sqrt(*a.square_sum.as<double>());
    *a.finite.as<std::int32_t>() = std::isfinite(norm) && std::isfinite(*a.loss.as<double>()) ? 1 : 0;
    *a.scale.as<float>() =
        a.clip_norm > 0 && norm > a.clip_norm ? static_cast<float>(a.clip_norm / (norm + 1e-6)) : 1.0f;
  });
}

void HostElementwise::hash(Stream& stream, const TensorView& x, const TensorView& hash) {
  arguments::check_hash(x, hash);
  HostStream::of(stream).enqueue([&pool = pool_, x, hash] {
    std::atomic<std::uint64_t> sum{0};
    pool.run_blocks(x.elements(), elements_per_task,
                    [&](std::int64_t begin, std::int64_t end) { sum += reference::hash(x.as<float>(), begin, end); });
    hash.as<std::int64_t>()[0] = static_cast<std::int64_t>(sum.load());
    hash.as<std::int64_t>()[1] = static_cast<std::int64_t>(~sum.load());
  });
}

}  // namespace ananke::host
