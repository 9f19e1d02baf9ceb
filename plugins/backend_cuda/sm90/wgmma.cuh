// Products of a warpgroup (four warps): a [64, 16] times b [16, N] in bf16 from shared memory, added in f32.
//
// Both factors lie in slabs of 128-byte rows whose 16-byte pieces are permuted, piece p of row r standing at p ^ (r %
// 8) (TMA's 128-byte swizzle; slabs begin at multiples of 1024 bytes). K-major: a row is 64 elements of k of one row of
// a or column of b. MN-major: a row is 64 rows of a or columns of b at one k, and a slab holds 64 k.
#pragma once

#include <cstdint>

namespace ananke::cuda::sm90 {

enum class Major { k, mn };

// The descriptor of a factor that begins at an address of shared memory (PTX ISA, "matrix-descriptor"): address, bytes
// between slabs along MN, bytes between groups of eight rows, all in units of 16, and the swizzle's kind.
template <Major major>
__device__ __forceinline__ std::uint64_t describe(std::uint32_t address) {
  constexpr std::uint64_t slab = major == Major::mn ? 64 * 128 : 16, eight_rows = 8 * 128, swizzle_128 = 1;
  return swizzle_128 << 62 | (eight_rows >> 4) << 32 | (slab >> 4) << 16 | ((address & 0x3ffff) >> 4);
}
// What 16 more of k add to it.
template <Major major>
inline constexpr std::uint64_t next_k = (major == Major::k ? 16 * 2 : 16 * 128) >> 4;

// Before a batch of products: registers and shared memory are as other instructions left them.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most `Pending` batches are not done.
template <int Pending>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// The compiler reads sums no earlier than here.
template <int N>
__device__ __forceinline__ void hold(float (&sum)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(sum[i])::"memory");
}

#define ANANKE_TEN(t) \
  "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9, "
#define ANANKE_SIXTY ANANKE_TEN() ANANKE_TEN(1) ANANKE_TEN(2) ANANKE_TEN(3) ANANKE_TEN(4) ANANKE_TEN(5)
#define ANANKE_HUNDRED_TWENTY \
  ANANKE_SIXTY ANANKE_TEN(6) ANANKE_TEN(7) ANANKE_TEN(8) ANANKE_TEN(9) ANANKE_TEN(10) ANANKE_TEN(11)
#define ANANKE_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ANANKE_16(i) ANANKE_4(i), ANANKE_4(i + 4), ANANKE_4(i + 8), ANANKE_4(i + 12)
#define ANANKE_64(i) ANANKE_16(i), ANANKE_16(i + 16), ANANKE_16(i + 32), ANANKE_16(i + 48)

// d = a b, plus d where `add` is not 0. Thread t of the warpgroup, lane l of warp w, holds in d[4 j + i] the element of
// row 16 w + l / 4 + 8 (i / 2) and column 8 j + 2 (l % 4) + i % 2.
template <Major a_major, Major b_major>
__device__ __forceinline__ void multiply(float (&d)[128], std::uint64_t a, std::uint64_t b, int add) {
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %130, 0;\n\twgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{" ANANKE_HUNDRED_TWENTY "%120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, p, 1, 1, %131, %132;\n\t}"
      : ANANKE_64(0), ANANKE_64(64)
      : "l"(a), "l"(b), "r"(add), "n"(a_major == Major::mn), "n"(b_major == Major::mn));
}
template <Major a_major, Major b_major>
__device__ __forceinline__ void multiply(float (&d)[64], std::uint64_t a, std::uint64_t b, int add) {
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\twgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{" ANANKE_SIXTY "%60, %61, %62, %63}, %64, %65, p, 1, 1, %67, %68;\n\t}"
      : ANANKE_64(0)
      : "l"(a), "l"(b), "r"(add), "n"(a_major == Major::mn), "n"(b_major == Major::mn));
}

#undef ANANKE_TEN
#undef ANANKE_SIXTY
#undef ANANKE_HUNDRED_TWENTY
#undef ANANKE_4
#undef ANANKE_16
#undef ANANKE_64

}  // namespace ananke::cuda::sm90
