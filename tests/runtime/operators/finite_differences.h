// Central differences in f64: the judge of the reference's gradients.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace ananke {

using Doubles = std::vector<double>;

inline Doubles random_doubles(std::int64_t n, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  Doubles values(static_cast<std::size_t>(n));
  for (double& value : values) value = uniform(engine);
  return values;
}

inline double inner(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// `value` looks at `x`; `gradient` is what should be d value / d x.
inline void expect_gradient(const std::string& name, Doubles& x, const Doubles& gradient,
                            const std::function<double()>& value) {
  ASSERT_EQ(x.size(), gradient.size()) << name;
  constexpr double step = 1e-5;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double kept = x[i];
    x[i] = kept + step;
    const double above = value();
    x[i] = kept - step;
    const double below = value();
    x[i] = kept;
    EXPECT_NEAR(gradient[i], (above - below) / (2 * step), 1e-7 * (1 + std::abs(gradient[i])))
        << name << "[" << i << "]";
  }
}

}  // namespace ananke
