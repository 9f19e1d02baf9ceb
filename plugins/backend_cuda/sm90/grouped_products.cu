#include <array>

#include "plugins/backend_cuda/sm90/grouped_configs.cuh"
#include "plugins/backend_cuda/sm90/grouped_products.h"
#include "runtime/base/error.h"

namespace ananke::cuda::sm90 {
namespace {

constexpr int streams = 4;  // that launches come from

int narrow(std::int64_t n) { return static_cast<int>(n); }

void expect(const char* what, std::int64_t got, std::int64_t want) {
  ANANKE_CHECK(got == want, "grouped product: {} is {}, not {}", what, got, want);
}

}  // namespace

GroupedProducts::GroupedProducts(const DeviceFacts& facts, Faults& faults, Arena& memory)
    : blocks_(facts.device >= 0 && facts.major == 9 ? facts.multiprocessors : 0), faults_(faults.sink()) {
  counters_.emplace(memory, "operators: tile counters", streams, 256);
  if (blocks_ == 0) return;
  maps_.emplace();
  prepare<Forward>();
  prepare<Backward>();
  prepare<Gradient>();
  prepare_swiglu();
}

bool GroupedProducts::take(std::int64_t groups, std::span<const Matrices> matrices) const {
  if (blocks_ == 0 || groups <= 0 || groups > most_grouped) return false;
  return std::ranges::all_of(matrices, can_be_mapped);
}

Arguments GroupedProducts::arguments(cudaStream_t stream, const Groups& groups) {
  Arguments call{};
  call.offsets = groups.offsets;
  call.groups = narrow(groups.count);
  call.rows = narrow(groups.rows);
  call.strip = strip;
  call.counter = static_cast<TileCounter*>(counters_->of(stream).data);
  call.faults = faults_;
  return call;
}

void GroupedProducts::multiply(cudaStream_t stream, const Groups& groups, const Matrices& x, const Matrices& w,
                               bool transposed, const Matrices& out) {
  ANANKE_CHECK(take(groups.count, std::array{x, w, out}), "grouped product of matrices that no kernel takes");
  expect("the number of matrices", w.count, groups.count);
  expect("the number of rows", out.rows, x.rows);
  expect("the length of rows", x.columns, transposed ? w.rows : w.columns);
  expect("the length of rows of the output", out.columns, transposed ? w.columns : w.rows);
  ANANKE_CHECK(x.dtype == DType::bf16 && w.dtype == DType::bf16 && out.dtype == DType::bf16,
               "grouped product of {} by {} into {}", name_of(x.dtype), name_of(w.dtype), name_of(out.dtype));
  Arguments call = arguments(stream, groups);
  call.n = narrow(out.columns);
  call.k = narrow(x.columns);
  if (transposed) {
    launch<Backward>(stream, *maps_, blocks_, x, w, out, call);
  } else {
    launch<Forward>(stream, *maps_, blocks_, x, w, out, call);
  }
}

void GroupedProducts::multiply_rows(cudaStream_t stream, const Groups& groups, const Matrices& a, const Matrices& b,
                                    const Matrices& out, bool add) {
  ANANKE_CHECK(take(groups.count, std::array{a, b, out}), "grouped product of matrices that no kernel takes");
  expect("the number of matrices", out.count, groups.count);
  expect("the number of rows", b.rows, a.rows);
  expect("the length of columns of the output", out.rows, a.columns);
  expect("the length of rows of the output", out.columns, b.columns);
  ANANKE_CHECK(a.dtype == DType::bf16 && b.dtype == DType::bf16 && out.dtype == DType::f32,
               "grouped product of {} by {} into {}", name_of(a.dtype), name_of(b.dtype), name_of(out.dtype));
  Arguments call = arguments(stream, groups);
  call.m = narrow(out.rows);
  call.n = narrow(out.columns);
  call.add = add;
  launch<Gradient>(stream, *maps_, blocks_, a, b, out, call);
}

}  // namespace ananke::cuda::sm90
