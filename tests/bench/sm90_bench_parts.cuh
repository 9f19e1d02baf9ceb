// What the parts of sm90_bench share: device memory, random numbers, processes, times.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/sm90/tensor_maps.h"

namespace ananke::cuda::sm90 {

// SwiGLU in the products' kernels: the same bits as products and kernels of their own; 0 where all is right.
int check_swiglu(const std::string& part);
int time_swiglu(const std::string& part);

namespace {

using Offsets = std::vector<std::int32_t>;

// Device memory, filled with a byte.
class Memory {
 public:
  explicit Memory(std::size_t bytes, int filling = 0xff) : bytes_(bytes) {
    check(cudaMalloc(&data_, std::max<std::size_t>(bytes, 16)), "reserve memory");
    check(cudaMemset(data_, filling, bytes), "fill memory");
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { cudaFree(data_); }
  void* data() const { return data_; }
  template <class T>
  std::vector<T> read() const {
    std::vector<T> values(bytes_ / sizeof(T));
    check(cudaMemcpy(values.data(), data_, values.size() * sizeof(T), cudaMemcpyDeviceToHost), "read memory");
    return values;
  }
  template <class T>
  void write(const std::vector<T>& values) {
    check(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "write memory");
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

__device__ inline float noise(unsigned long long at, unsigned seed) {
  unsigned long long z = at * 0x9e3779b97f4a7c15ull + seed * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  float sum = 0;  // of four uniform numbers: nearly normal, deviation 0.29
  for (int i = 0; i < 4; ++i) sum += static_cast<float>(z >> 16 * i & 0xffff) / 65536.0f - 0.5f;
  return sum * 0.5f;
}

// Matrices get random numbers where `rows` says so; between and behind them stays what was there.
__global__ void fill_kernel(Matrices m, std::int64_t rows, unsigned seed) {
  const std::int64_t per = rows * m.columns, all = m.count * per;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < all; i += step) {
    const std::int64_t at = i / per * m.matrix_stride + i % per / m.columns * m.stride + i % m.columns;
    if (m.dtype == DType::bf16) {
      static_cast<__nv_bfloat16*>(m.data)[at] = __float2bfloat16_rn(noise(i, seed));
    } else {
      static_cast<float*>(m.data)[at] = noise(i, seed);
    }
  }
}
inline void fill(const Matrices& m, std::int64_t rows, unsigned seed) {
  if (rows == 0) return;
  fill_kernel<<<4096, 256>>>(m, rows, seed);
  check(cudaGetLastError(), "fill a matrix");
}

// body() in a process of its own: a kernel that fails takes the context with it.
inline bool apart(const std::function<bool()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    bool right = false;
    try {
      right = body();
    } catch (const std::exception& error) {
      fmt::print("  FAILED: {}\n", error.what());
    }
    std::fflush(nullptr);
    _exit(right ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) fmt::print("  DIED of signal {}\n", WTERMSIG(status));
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

class Clock {
 public:
  Clock() {
    check(cudaEventCreate(&begin_), "make an event");
    check(cudaEventCreate(&end_), "make an event");
  }
  ~Clock() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  // Microseconds: the median of some runs after some that warm up.
  double median(cudaStream_t stream, const std::function<void()>& run) {
    std::vector<float> times;
    for (int i = 0; i < 11; ++i) {
      check(cudaEventRecord(begin_, stream), "record an event");
      run();
      check(cudaEventRecord(end_, stream), "record an event");
      check(cudaStreamSynchronize(stream), "run a kernel");
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, begin_, end_), "take a time");
      if (i >= 2) times.push_back(milliseconds);
    }
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return static_cast<double>(times[times.size() / 2]) * 1e3;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// Rows of experts as a router chooses them: not all as many, none empty.
inline Offsets natural(int groups, int mean) {
  std::mt19937 engine(7);
  std::normal_distribution<double> normal(1, 0.25);
  Offsets offsets{0};
  for (int g = 0; g < groups; ++g) {
    offsets.push_back(offsets.back() + std::max(1, static_cast<int>(std::lround(mean * normal(engine)))));
  }
  return offsets;
}

}  // namespace
}  // namespace ananke::cuda::sm90
