#include "runtime/model/rope.h"

#include <cmath>

namespace ananke {

RopeCache make_rope_cache(std::int64_t positions, std::int64_t head_dim, double theta) {
  const std::int64_t half = head_dim / 2;
  RopeCache cache;
  cache.cosine.resize(static_cast<std::size_t>(positions * half));
  cache.sine.resize(cache.cosine.size());
  std::vector<float> frequency(static_cast<std::size_t>(half));
  for (std::int64_t i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    frequency[static_cast<std::size_t>(i)] = 1.0F / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
  }
  for (std::int64_t p = 0; p < positions; ++p) {
    for (std::int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(p) * frequency[static_cast<std::size_t>(i)];
      const auto at = static_cast<std::size_t>(p * half + i);
      cache.cosine[at] = static_cast<float>(std::cos(static_cast<double>(angle)));
      cache.sine[at] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
  return cache;
}

}  // namespace ananke
