// One test for both backends: what an operator does is written once, run by the host backend (whose operators have
// tests against the definition) and by the CUDA backend, in f32 and in bf16, and compared.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "plugins/backend_cuda/operators/attention.h"
#include "plugins/backend_cuda/operators/grouped_mlp.h"
#include "runtime/device/arena.h"
#include "runtime/operators/operator_set.h"

namespace ananke::cuda {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;
using Ints = std::vector<std::int32_t>;
using Bytes = std::vector<std::uint8_t>;

// A device tensor: where values are, and what they are.
struct Tensor {
  Buffer memory;
  TensorView view;
  operator const TensorView&() const { return view; }
};

// One backend with its operators. `elements`: what activations are; with bf16, values are rounded to it on either
// backend, and the host computes with them in f32.
class Bench {
 public:
  Bench(DType elements, bool rounded) : elements_(elements), rounded_(rounded) {}
  virtual ~Bench() = default;
  const OperatorSet* operator->() { return &operators(); }
  virtual const OperatorSet& operators() = 0;
  virtual Stream& stream() = 0;
  virtual void finish() = 0;                   // throws what went wrong
  virtual std::uint64_t reads() { return 0; }  // of device numbers by operators

  Tensor activation(const Floats& values, const Shape& shape);  // f32 or bf16
  template <class T>
  Tensor tensor(const std::vector<T>& values, const Shape& shape) {
    return upload(values.data(), dtype_of<T>(), shape, static_cast<std::int64_t>(values.size()));
  }
  // To be written: full of NaN.
  Tensor blank_activation(const Shape& shape) { return blank(elements_, shape); }
  Tensor blank(DType dtype, const Shape& shape);
  // `saved` or `workspace`, full of NaN; what lies behind it is looked at by check_guards().
  Region scratch(std::size_t bytes);
  void check_guards();

  // What stands there, bf16 as f32. Waits.
  Floats floats(const TensorView& view);
  // What stands in an activation, as it is stored: rounded where the device's are bf16.
  Floats stored(const TensorView& view);
  template <class T>
  std::vector<T> values(const TensorView& view) {
    std::vector<T> out(static_cast<std::size_t>(view.elements()));
    EXPECT_EQ(view.dtype, dtype_of<T>());
    download(out.data(), view.data, view.bytes());
    return out;
  }
  bool rounded() const { return rounded_; }
  DType elements() const { return elements_; }
  void clear() { scratch_.clear(); }

 protected:
  virtual Arena& memory() = 0;
  virtual void copy_in(void* to, const void* from, std::size_t bytes) = 0;
  virtual void copy_out(void* to, const void* from, std::size_t bytes) = 0;

 private:
  Tensor upload(const void* values, DType dtype, const Shape& shape, std::int64_t count);
  void download(void* to, const void* from, std::size_t bytes);

  const DType elements_;
  const bool rounded_;
  struct Guarded {
    Buffer memory;
    std::size_t bytes;
  };
  std::vector<Guarded> scratch_;
};

std::unique_ptr<Bench> host_bench(bool rounded);
std::unique_ptr<Bench> cuda_bench(DType elements, AttentionChoice attention = AttentionChoice::own,
                                  bool deterministic = false, GroupedKernels grouped = GroupedKernels::sm90);
bool compute_capability_9();  // of the first device
// Why there is no device, or empty.
std::string no_device();

// What a run gives: values to be compared within `tolerance` of the largest one (f32) or `tolerance_bf16`; 0: equal.
struct Result {
  std::string name;
  Doubles values;
  double tolerance, tolerance_bf16;
};
using Results = std::vector<Result>;
using Run = std::function<Results(Bench&)>;

template <class T>
Result result(const std::string& name, const std::vector<T>& values, double tolerance = 1e-5,
              double tolerance_bf16 = 0.02) {
  return {name, Doubles(values.begin(), values.end()), tolerance, tolerance_bf16};
}
template <class T>
Result exact(const std::string& name, const std::vector<T>& values) {
  return result(name, values, 0, 0);
}

// Runs on the host and, twice, on the device: close to the host, and the same bits both times.
void compare(const std::string& what, const Run& run,
             std::initializer_list<DType> elements = {DType::f32, DType::bf16});
// The same on one device, the first `same` results the same bits.
void compare_on(Bench& device, const std::string& what, const Run& run, std::size_t same);
// The device refuses: the call, or the wait for it, throws Error(internal) whose message holds all `words`.
void expect_refused(const std::function<void(Bench&)>& call, std::initializer_list<const char*> words,
                    DType elements = DType::f32);

Floats random_floats(std::int64_t n, unsigned seed, float scale = 1);
// Multiples of 1/4 between -1 and 1: sums of their products are exact in f32, whatever the order.
Floats exact_floats(std::int64_t n, unsigned seed);

class CudaOperator : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = no_device(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

}  // namespace ananke::cuda
