#include "plugins/gpu_checks/gpu_checks.h"
#include "plugins/gpu_checks/kernels.h"
#include "plugins/gpu_checks/libraries.h"
#include "runtime/base/error.h"

namespace ananke::gpu_checks {
namespace {

using gpu_checks::check;

constexpr std::uint64_t size = 8192;
constexpr std::size_t workspace_bytes = 64 << 20;

void check(cublasStatus_t result, const char* what) {
  if (result != CUBLAS_STATUS_SUCCESS)
    fail(ErrorKind::resource, "cannot {}: cuBLASLt says {}", what, static_cast<int>(result));
}

// One product of two square matrices, bf16 with sums in f32.
class Product {
 public:
  Product() : api_(load_cublas()), workspace_(workspace_bytes) {
    check(api_.create(&handle_), "open cuBLASLt");
    check(api_.make_product(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describe a product");
    check(api_.make_layout(&layout_, CUDA_R_16BF, size, size, size), "describe a matrix");
    cublasLtMatmulPreference_t preference = nullptr;
    check(api_.make_preference(&preference), "ask for an algorithm");
    const std::size_t bytes = workspace_bytes;
    check(api_.set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes),
          "ask for an algorithm");
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    check(api_.choose(handle_, product_, layout_, layout_, layout_, layout_, preference, 1, &result, &found),
          "choose an algorithm");
    api_.drop_preference(preference);
    if (found == 0) fail(ErrorKind::resource, "cuBLASLt has no algorithm for a product of 8192 x 8192 in bf16");
    algorithm_ = result.algo;
  }
  ~Product() {
    api_.drop_layout(layout_);
    api_.drop_product(product_);
    api_.destroy(handle_);
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  void run(const DeviceMemory& a, const DeviceMemory& b, const DeviceMemory& out, const Stream& stream) {
    const float one = 1, zero = 0;
    check(api_.multiply(handle_, product_, &one, a.data(), layout_, b.data(), layout_, &zero, out.data(), layout_,
                        out.data(), layout_, &algorithm_, workspace_.data(), workspace_bytes, stream),
          "multiply");
  }

 private:
  const CublasLt api_;
  const DeviceMemory workspace_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t layout_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
};

unsigned long long different_words(const DeviceMemory& a, const DeviceMemory& b, const Stream& stream) {
  const DeviceMemory count(sizeof(unsigned long long));
  check(cudaMemsetAsync(count.data(), 0, count.bytes(), stream), "clear a counter");
  check(count_different(a.data(), b.data(), a.bytes(), static_cast<unsigned long long*>(count.data()), stream),
        "compare products");
  unsigned long long different = 0;
  check(cudaMemcpyAsync(&different, count.data(), sizeof different, cudaMemcpyDeviceToHost, stream), "read a counter");
  stream.wait();
  return different;
}

}  // namespace

std::vector<Rate> product_rates(std::chrono::milliseconds least) {
  const Stream stream;
  const std::size_t bytes = size * size * 2;
  const DeviceMemory a(bytes), b(bytes), first(bytes), out(bytes);
  check(fill_bf16(a.data(), size * size, 1, stream), "fill a matrix");
  check(fill_bf16(b.data(), size * size, 2, stream), "fill a matrix");
  Product product;
  product.run(a, b, first, stream);
  const double seconds = seconds_of(
      stream, [&] { product.run(a, b, out, stream); }, least);
  // The same product of the same matrices: a GPU that gives other bits the next time computes wrongly, silently.
  if (const unsigned long long different = different_words(first, out, stream)) {
    fail(ErrorKind::numeric, "the same product gave {} other words of {} the second time", different, bytes / 4);
  }
  return {{"matmul", 2.0 * size * size * size / seconds / 1e12, "TFLOP/s"}};
}

}  // namespace ananke::gpu_checks
