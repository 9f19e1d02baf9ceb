// What the tests of the host operators share: a host with its stream, memory, and comparison with the reference in f64.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "plugins/backend_host/host_stream.h"
#include "plugins/backend_host/operators/host_operators.h"
#include "plugins/backend_host/thread_pool.h"
#include "runtime/base/error.h"

namespace ananke::host {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;
using Ints = std::vector<std::int32_t>;

struct Host {
  explicit Host(int threads = 1) : pool(threads), operators(pool), stream("compute") {}
  const OperatorSet* operator->() const { return &operators.set(); }
  void finish() { stream.synchronize(); }
  ThreadPool pool;
  HostOperators operators;
  HostStream stream;
};

// Memory for `saved` or `workspace`: aligned as promised, no byte larger than asked, full of NaN.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes) : bytes_(bytes), data_(::operator new(bytes, alignment)) {
    std::memset(data_, 0xff, bytes);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { ::operator delete(data_, alignment); }
  Region region() const { return {data_, bytes_}; }

 private:
  static constexpr std::align_val_t alignment{256};
  std::size_t bytes_;
  void* data_;
};

inline Floats random_floats(std::int64_t n, unsigned seed, float scale = 1) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> uniform(-scale, scale);
  Floats values(static_cast<std::size_t>(n));
  for (float& value : values) value = uniform(engine);
  return values;
}

inline Floats nans(std::int64_t n) { return Floats(static_cast<std::size_t>(n), std::nanf("")); }
inline Doubles to_doubles(const Floats& values) { return {values.begin(), values.end()}; }

template <class T>
TensorView view(const std::vector<T>& values, Shape shape) {  // operators leave inputs alone, but views do not say so
  EXPECT_EQ(static_cast<std::int64_t>(values.size()), shape.elements());
  return view_of(const_cast<T*>(values.data()), shape);
}

template <class T>
TensorView view(const std::vector<T>&& values, Shape shape) = delete;  // the stream may look at it later

// Within `tolerance` of the largest element; `base`: what was in `got` before a gradient was added.
inline void expect_close(const std::string& name, const Floats& got, const Doubles& want, double tolerance = 2e-6,
                         double base = 0) {
  ASSERT_EQ(got.size(), want.size()) << name;
  double largest = std::abs(base) + 0.1;  // inputs are near 1, so what cancels to 0 keeps errors of that size
  for (double value : want) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - base - want[i]);
    ASSERT_LE(error, tolerance * largest) << name << "[" << i << "] = " << got[i] << ", want " << base + want[i];
  }
}

inline bool has_nan(const Floats& values) {
  for (float value : values) {
    if (std::isnan(value)) return true;
  }
  return false;
}

// The call throws Error(internal) whose message holds every one of `words`.
template <class Call>
void expect_refused(const Call& call, std::initializer_list<const char*> words) {
  try {
    call();
    ADD_FAILURE() << "not refused: " << *words.begin();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::internal);
    for (const char* word : words) EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

// run(host) -> list of outputs; the same bits with 1, 2 and 3 threads.
template <class Run>
void expect_same_bits_with_any_threads(const Run& run) {
  Host one(1);
  const std::vector<Floats> want = run(one);
  for (int threads : {2, 3}) {
    Host host(threads);
    const std::vector<Floats> got = run(host);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].size(), want[i].size());
      if (want[i].empty()) continue;
      EXPECT_EQ(std::memcmp(got[i].data(), want[i].data(), want[i].size() * sizeof(float)), 0)
          << "output " << i << " with " << threads << " threads";
    }
  }
}

}  // namespace ananke::host
