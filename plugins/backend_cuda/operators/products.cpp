#include "plugins/backend_cuda/operators/products.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "plugins/backend_cuda/check.h"
#include "runtime/base/error.h"

namespace ananke::cuda {
namespace {

constexpr int streams = 4;                                      // compute, one more, and those beside them
constexpr std::size_t workspace_bytes = std::size_t{32} << 20;  // what cuBLAS itself takes on Hopper

cudaDataType_t type_of(DType dtype) { return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

// Bytes that an address and a row's length are both a multiple of, at most 16.
int alignment_of(const void* address, std::int64_t stride, DType dtype, std::int64_t batch_stride) {
  const auto size = static_cast<std::uint64_t>(size_of(dtype));
  const std::uint64_t bits = reinterpret_cast<std::uintptr_t>(address) | static_cast<std::uint64_t>(stride) * size |
                             static_cast<std::uint64_t>(batch_stride) * size | 16u;
  return 1 << std::countr_zero(bits);
}

// Up to a number with three leading binary digits, at least 64: eight sizes for each power of two.
std::int64_t rounded_up(std::int64_t rows) {
  const auto size = static_cast<std::uint64_t>(std::max<std::int64_t>(rows, 1));
  const auto step = static_cast<std::int64_t>(std::max<std::uint64_t>(64, std::bit_floor(size) / 8));
  return (rows + step - 1) / step * step;
}

// Row-major matrices are column-major transposes, so cuBLAS is asked for out^T = b^T a^T.
class Description {
 public:
  Description(const Product& p, std::int64_t m, std::int64_t k, std::int64_t count) {
    check(cublasLtMatmulDescInit(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describe a product");
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    layout(first_, p.in, p.b.transposed ? k : p.n, p.b.transposed ? p.n : k, p.b.stride, count, p.b.batch_stride);
    layout(second_, p.in, p.a.transposed ? m : k, p.a.transposed ? k : m, p.a.stride, count, p.a.batch_stride);
    layout(out_, p.out_type, p.n, m, p.out_stride, count, p.out_batch_stride);
  }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;

  cublasStatus_t choose(cublasLtHandle_t handle, const int (&alignments)[4], cublasLtMatmulHeuristicResult_t& result,
                        int& found) {
    cublasLtMatmulPreferenceOpaque_t preference;
    check(cublasLtMatmulPreferenceInit(&preference), "describe a product");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
      check(cublasLtMatmulPreferenceSetAttribute(&preference, what, &value, sizeof(value)), "describe a product");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(alignments[1]));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(alignments[0]));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(alignments[3]));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(alignments[2]));
    return cublasLtMatmulAlgoGetHeuristic(handle, &product_, &first_, &second_, &out_, &out_, &preference, 1, &result,
                                          &found);
  }

  cublasStatus_t run(cublasLtHandle_t handle, const Product& p, const cublasLtMatmulAlgo_t& algorithm,
                     const Region& workspace, cudaStream_t stream) {
    return cublasLtMatmul(handle, &product_, &p.alpha, p.b.data, &first_, p.a.data, &second_, &p.beta,
                          p.add ? p.add : p.out, &out_, p.out, &out_, &algorithm, workspace.data, workspace.bytes,
                          stream);
  }

 private:
  void set(cublasLtMatmulDescAttributes_t what, cublasOperation_t value) {
    const auto number = static_cast<std::int32_t>(value);
    check(cublasLtMatmulDescSetAttribute(&product_, what, &number, sizeof(number)), "describe a product");
  }
  static void layout(cublasLtMatrixLayoutOpaque_t& made, DType dtype, std::int64_t rows, std::int64_t columns,
                     std::int64_t stride, std::int64_t count, std::int64_t batch_stride) {
    check(cublasLtMatrixLayoutInit(&made, type_of(dtype), static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), stride),
          "describe a matrix");
    if (count == 1) return;
    const auto batches = static_cast<std::int32_t>(count);
    check(cublasLtMatrixLayoutSetAttribute(&made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batches, sizeof(batches)),
          "describe a matrix");
    check(cublasLtMatrixLayoutSetAttribute(&made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride,
                                           sizeof(batch_stride)),
          "describe a matrix");
  }

  cublasLtMatmulDescOpaque_t product_;
  cublasLtMatrixLayoutOpaque_t first_, second_, out_;
};

std::string text_of(const Product& p) {
  return fmt::format("multiply {} [{}, {}]{} by [{}, {}]{} into {}", name_of(p.in), p.m, p.k,
                     p.a.transposed ? " (transposed)" : "", p.k, p.n, p.b.transposed ? " (transposed)" : "",
                     name_of(p.out_type));
}

// What is left where the sum has no terms.
void without_terms(cudaStream_t stream, const Product& p) {
  if (p.beta == 1 && !p.add) return;
  ANANKE_CHECK(p.beta == 0, "a product without terms, added {} times", p.beta);
  const std::size_t size = size_of(p.out_type);
  for (std::int64_t i = 0; i < p.count; ++i) {
    auto* out = static_cast<std::byte*>(p.out) + static_cast<std::size_t>(i * p.out_batch_stride) * size;
    check(cudaMemset2DAsync(out, static_cast<std::size_t>(p.out_stride) * size, 0, static_cast<std::size_t>(p.n) * size,
                            static_cast<std::size_t>(p.m), stream),
          "clear a product");
  }
}

}  // namespace

Products::Products(const DeviceFacts& facts, Arena& memory)
    : device_(facts.device), workspace_(memory, "cuBLASLt workspace", streams, workspace_bytes) {
  if (device_ >= 0) check(cublasLtCreate(&handle_), "open cuBLASLt");
}

Products::~Products() {
  if (!handle_) return;
  cudaSetDevice(device_);
  cublasLtDestroy(handle_);
}

std::size_t Products::Hash::operator()(const Key& key) const noexcept {
  static_assert(sizeof(Key) % sizeof(std::uint64_t) == 0 && std::has_unique_object_representations_v<Key>);
  std::uint64_t words[sizeof(Key) / sizeof(std::uint64_t)], hash = 0xcbf29ce484222325;
  std::memcpy(words, &key, sizeof(key));
  for (const std::uint64_t word : words) hash = (hash ^ word) * 0x100000001b3 + (hash >> 29);
  return hash;
}

Products::Key Products::key_of(const Product& p, bool rounded) {
  const bool ragged_m = rounded && p.ragged == Product::Ragged::m, ragged_k = rounded && p.ragged == Product::Ragged::k;
  Key key{};
  key.m = ragged_m ? rounded_up(p.m) : p.m;
  key.n = p.n;
  key.k = ragged_k ? rounded_up(p.k) : p.k;
  key.a_stride = p.a.stride;
  key.b_stride = p.b.stride;
  key.out_stride = p.out_stride;
  key.count = p.count == 1 && p.tuned_count == 1 ? 1 : std::max<std::int64_t>(p.tuned_count, 2);
  const std::int64_t batched = key.count == 1 ? 0 : 1;
  key.a_alignment = alignment_of(p.a.data, p.a.stride, p.in, batched * p.a.batch_stride);
  key.b_alignment = alignment_of(p.b.data, p.b.stride, p.in, batched * p.b.batch_stride);
  key.out_alignment = alignment_of(p.out, p.out_stride, p.out_type, batched * p.out_batch_stride);
  key.add_alignment = alignment_of(p.add ? p.add : p.out, p.out_stride, p.out_type, batched * p.out_batch_stride);
  key.kind = (p.in == DType::bf16) | (p.out_type == DType::bf16) << 1 | p.a.transposed << 2 | p.b.transposed << 3;
  return key;
}

const cublasLtMatmulAlgo_t& Products::algorithm(const Product& p, const Key& key) {
  const auto known = algorithms_.find(key);
  if (known != algorithms_.end()) return known->second;
  Description description(p, key.m, key.k, key.count);
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status = description.choose(
      handle_, {key.a_alignment, key.b_alignment, key.out_alignment, key.add_alignment}, result, found);
  if (status != CUBLAS_STATUS_SUCCESS) check(status, text_of(p));
  if (found == 0) check(CUBLAS_STATUS_NOT_SUPPORTED, text_of(p));
  return algorithms_.emplace(key, result.algo).first->second;
}

void Products::run(cudaStream_t stream, const Product& p) {
  if (p.m == 0 || p.n == 0 || p.count == 0) return;
  if (p.k == 0) return without_terms(stream, p);
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  ANANKE_CHECK(p.m <= most && p.n <= most && p.k <= most && p.count <= 65535, "{}, {} times: too large for cuBLASLt",
               text_of(p), p.count);
  const Region workspace = workspace_.of(stream);
  std::lock_guard lock(mutex_);
  Description description(p, p.m, p.k, p.count);
  cublasStatus_t status = description.run(handle_, p, algorithm(p, key_of(p, true)), workspace, stream);
  // An algorithm for a rounded size need not take every size below it.
  if (status != CUBLAS_STATUS_SUCCESS && p.ragged != Product::Ragged::none) {
    status = description.run(handle_, p, algorithm(p, key_of(p, false)), workspace, stream);
  }
  if (status != CUBLAS_STATUS_SUCCESS) check(status, text_of(p));
}

}  // namespace ananke::cuda
