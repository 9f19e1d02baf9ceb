// Tensors of more than 2^31 elements that need hardly any memory.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>

#include "runtime/operators/operator.h"
#include "runtime/tensor/tensor.h"
#include "tests/plugins/backend_host/operators/fixture.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SKIP_UNDER_SANITIZERS() GTEST_SKIP() << "their shadow of so much memory would not fit"
#else
#define SKIP_UNDER_SANITIZERS()
#endif

namespace ananke::host {

class FarTensor {
 public:
  // All zero, to be read: pages that nobody writes to are the kernel's one zero page.
  static FarTensor zeros(Shape shape) { return FarTensor(shape, 0); }
  // To be written: all but the last `kept` elements (and what shares pages with them) lie over each other in the same
  // few megabytes, where what was written is lost.
  static FarTensor sink(Shape shape, std::int64_t kept) { return FarTensor(shape, kept); }
  ~FarTensor() { ::munmap(data_, bytes_); }
  FarTensor(const FarTensor&) = delete;
  FarTensor& operator=(const FarTensor&) = delete;

  TensorView view() const { return view_of(data_, shape_); }
  Region region() const { return {data_, bytes_}; }
  // The last `count` elements, which lie beyond 2^31.
  std::span<float> last(std::int64_t count) const {
    EXPECT_GT(shape_.elements() - count, std::int64_t{1} << 31);
    return {data_ + (shape_.elements() - count), static_cast<std::size_t>(count)};
  }

 private:
  static constexpr std::size_t page = std::size_t{1} << 21;  // larger than any page, so that all ends fall on one
  static constexpr std::size_t sink_bytes = 8 * page;

  FarTensor(Shape shape, std::int64_t kept)
      : shape_(shape), bytes_((static_cast<std::size_t>(shape.elements()) * sizeof(float) + page - 1) / page * page) {
    void* place = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED) throw std::runtime_error("no address space for a far tensor");
    data_ = static_cast<float*>(place);
    ::madvise(place, bytes_, MADV_HUGEPAGE);
    if (kept == 0) return;
    const auto lost = static_cast<std::size_t>(shape.elements() - kept) * sizeof(float) / page * page;
    const int file = ::memfd_create("sink", MFD_CLOEXEC);
    bool mapped = file >= 0 && ::ftruncate(file, static_cast<off_t>(sink_bytes)) == 0;
    for (std::size_t at = 0; at < lost && mapped; at += sink_bytes) {
      mapped = ::mmap(static_cast<char*>(place) + at, std::min(sink_bytes, lost - at), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED;
    }
    if (file >= 0) ::close(file);
    if (!mapped) throw std::runtime_error("no address space for a far tensor");
  }

  Shape shape_;
  std::size_t bytes_;
  float* data_ = nullptr;
};

inline constexpr std::int64_t far = std::int64_t{1} << 31;

struct Far : testing::Test {
  void SetUp() override { SKIP_UNDER_SANITIZERS(); }
  Host host{2};
};

inline Floats floats_of(std::span<const float> values) { return {values.begin(), values.end()}; }

inline void fill(std::span<float> into, unsigned seed) {
  const Floats values = random_floats(static_cast<std::int64_t>(into.size()), seed);
  std::copy(values.begin(), values.end(), into.begin());
}

inline void expect_same(const char* name, std::span<const float> got, const Floats& want) {
  ASSERT_EQ(got.size(), want.size()) << name;
  EXPECT_TRUE(std::ranges::any_of(want, [](float value) { return value != 0; })) << name;
  for (std::size_t i = 0; i < want.size(); ++i) {
    ASSERT_LE(std::abs(got[i] - want[i]), 1e-6f * std::max(1.0f, std::abs(want[i]))) << name << " " << i;
  }
}

}  // namespace ananke::host
