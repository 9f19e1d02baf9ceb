#include "runtime/base/random.h"

#include <bit>
#include <cmath>

#include "runtime/base/hash.h"

namespace ananke {
namespace {

struct Block {
  std::uint32_t word[4];
};

Block philox(std::uint64_t counter, std::uint64_t key) noexcept {
  Block x = {{static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0}};
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * x.word[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57U} * x.word[2];
    x = {{static_cast<std::uint32_t>(p1 >> 32) ^ x.word[1] ^ k0, static_cast<std::uint32_t>(p1),
          static_cast<std::uint32_t>(p0 >> 32) ^ x.word[3] ^ k1, static_cast<std::uint32_t>(p0)}};
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return x;
}

// Inverse of the standard normal's cumulative distribution (Acklam's rational approximation, relative error 1.15e-9).
double inverse_normal(double p) noexcept {
  static constexpr double a[] = {-3.969683028665376e+01, 2.209460984245205e+02, -2.759285104469687e+02,
                                 1.383577518672690e+02, -3.066479806614716e+01, 2.506628277459239e+00};
  static constexpr double b[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
                                 6.680131188771972e+01, -1.328068155288572e+01};
  static constexpr double c[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                                 -2.549732539343734e+00, 4.374664141464968e+00, 2.938163982698783e+00};
  static constexpr double d[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                                 3.754408661907416e+00};
  const double tail = 0.02425;
  if (p < tail || p > 1 - tail) {
    const double q = std::sqrt(-2 * std::log(p < tail ? p : 1 - p));
    const double x = (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
                     ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1);
    return p < tail ? x : -x;
  }
  const double q = p - 0.5;
  const double r = q * q;
  return (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
         (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
}

}  // namespace

RandomKey::RandomKey(std::uint64_t seed, std::string_view name) noexcept : key_(hash64(name, seed)) {}

std::uint64_t RandomKey::bits(std::uint64_t index) const noexcept {
  const Block block = philox(index, key_);
  return std::uint64_t{block.word[0]} << 32 | block.word[1];
}

double RandomKey::uniform(std::uint64_t index) const noexcept {
  return (static_cast<double>(bits(index) >> 11) + 0.5) * 0x1p-53;
}

std::uint64_t RandomKey::below(std::uint64_t index, std::uint64_t bound) const noexcept {
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(bits(index)) * bound) >> 64);
}

double RandomKey::truncated_normal(std::uint64_t index) const noexcept {
  constexpr double below_minus_three = 0.0013498980316300945;  // P(z < -3)
  return inverse_normal(below_minus_three + uniform(index) * (1 - 2 * below_minus_three));
}

std::uint64_t permuted(const RandomKey& key, std::uint64_t count, std::uint64_t i) noexcept {
  if (count < 2) return 0;
  const int half = (std::bit_width(count - 1) + 1) / 2;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  do {  // cycle walking: the network permutes [0, 4^half); stay on the cycle until inside [0, count)
    std::uint64_t left = i >> half;
    std::uint64_t right = i & mask;
    for (std::uint64_t round = 0; round < 6; ++round) {
      const std::uint64_t next = left ^ (key.bits(right | round << 56) & mask);
      left = right;
      right = next;
    }
    i = left << half | right;
  } while (i >= count);
  return i;
}

}  // namespace ananke
