// The instructions of compute capability 9.0 that C++ has no name for, one function each (PTX ISA 8.0 and newer).
// Addresses of shared memory are 32-bit, as shared_address() gives them.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace ananke::cuda::sm90 {

__device__ __forceinline__ std::uint32_t shared_address(const void* in_shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(in_shared));
}

// Barriers of shared memory, 8 bytes each: `arrivals` complete a phase, together with the bytes that are expected.
__device__ __forceinline__ void barrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialised barriers seen by copies (the async proxy); a __syncthreads() makes them seen by other threads.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void arrive_expecting(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Whether the phase of this parity is complete; waits for a while.
__device__ __forceinline__ bool try_wait(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t complete;
  asm volatile(
      "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(complete)
      : "r"(barrier), "r"(parity)
      : "memory");
  return complete != 0;
}
__device__ __forceinline__ std::uint64_t nanoseconds() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}
// A phase lasts microseconds. One that does not end is a defect here: the kernel ends with an error and does not hang.
inline constexpr std::uint64_t longest_phase = 4'000'000'000;  // ns; debuggers and sanitizers are slow
__device__ __forceinline__ void wait(std::uint32_t barrier, std::uint32_t parity) {
  if (try_wait(barrier, parity)) return;
  const std::uint64_t begin = nanoseconds();
  while (!try_wait(barrier, parity)) {
    if (nanoseconds() - begin > longest_phase) __trap();
  }
}

// All `threads` that name barrier `id` (1..15) wait for each other.
__device__ __forceinline__ void sync_named(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Moves registers between the warpgroups of a block. All warps of a warpgroup call it.
template <int Registers>
__device__ __forceinline__ void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ __forceinline__ void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

// What this thread wrote to shared memory is seen by wgmma and by copies that are started after it.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// The same for all memory, and the other way: what copies wrote is seen by what this thread tells others after it.
__device__ __forceinline__ void fence_async_everywhere() { asm volatile("fence.proxy.async;" ::: "memory"); }

// Counters in device memory that blocks tell each other by what they have written.
__device__ __forceinline__ void add_release(int* counter, int n) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(counter), "r"(n) : "memory");
}
__device__ __forceinline__ int load_acquire(const int* counter) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

__device__ __forceinline__ void prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// Box of a tensor at (x, y, z), x along rows, into shared memory; `barrier` gets its bytes, those outside the tensor
// (zeros) too.
__device__ __forceinline__ void load_box(std::uint32_t to, const CUtensorMap& map, int x, int y, int z,
                                         std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(to),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
}
// The other way; what lies outside the tensor is left out. Belongs to the thread's open group of stores.
__device__ __forceinline__ void store_box(const CUtensorMap& map, int x, int y, int z, std::uint32_t from) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map), "r"(x),
               "r"(y), "r"(z), "r"(from)
               : "memory");
}
// Likewise, added to what is there (f32: subnormal numbers count as 0).
__device__ __forceinline__ void add_box(const CUtensorMap& map, int x, int y, int z, std::uint32_t from) {
  asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
               "r"(x), "r"(y), "r"(z), "r"(from)
               : "memory");
}
__device__ __forceinline__ void close_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until this thread's stores have read shared memory; until they are done.
__device__ __forceinline__ void wait_stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void wait_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8, and holds elements
// (l / 4, 2 (l % 4)) and the next one of every matrix.
__device__ __forceinline__ void store_matrices(std::uint32_t row, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                               std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b), "r"(c),
               "r"(d)
               : "memory");
}
// Each of the four transposed: lane l gives the address of what becomes row l % 8.
__device__ __forceinline__ void store_transposed(std::uint32_t row, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                                 std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}
// What store_matrices() with the same address has stored.
__device__ __forceinline__ void load_matrices(std::uint32_t row, std::uint32_t (&v)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t to, float a, float b) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(a), "f"(b) : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t to, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ uint4 load_shared(std::uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}

}  // namespace ananke::cuda::sm90
