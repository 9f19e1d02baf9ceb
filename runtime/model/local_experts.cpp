#include "runtime/model/local_experts.h"

#include "runtime/model/region_cutter.h"

namespace ananke {
namespace {

struct Saved {
  TensorView offsets;      // i32 [E + 1]
  TensorView row_of_slot;  // i32 [T * k]
};

Saved cut(RegionCutter& cutter, std::int64_t experts, std::int64_t slots) {
  Saved saved;
  saved.offsets = cutter.tensor(DType::i32, {experts + 1});
  saved.row_of_slot = cutter.tensor(DType::i32, {slots});
  return saved;
}

Saved cut(Region region, const Routing& routing) {
  RegionCutter cutter(region);
  return cut(cutter, routing.counts.shape[0], routing.indices.elements());
}

}  // namespace

std::size_t LocalExperts::saved(const ExpertSizes& s) const {
  RegionCutter cutter;
  cut(cutter, s.experts, s.tokens * s.k);
  return cutter.used();
}

std::size_t LocalExperts::workspace(const ExpertSizes& s) const {
  return operators_.permute->workspace(s.tokens * s.k, s.experts);
}

ExpertRows LocalExperts::dispatch(Stream& stream, const TensorView& x, const Routing& routing, const TensorView& rows,
                                  Region saved, Region workspace) {
  const Saved here = cut(saved, routing);
  operators_.permute->forward(
      stream, {x, routing.indices, routing.counts.shape[0], rows, here.offsets, here.row_of_slot}, workspace);
  return {rows, here.offsets};
}

TensorView LocalExperts::offsets(Region saved, const ExpertSizes& s) const {
  RegionCutter cutter(saved);
  return cut(cutter, s.experts, s.tokens * s.k).offsets;
}

void LocalExperts::combine(Stream& stream, const TensorView& rows, const Routing& routing, const TensorView& y,
                           Region saved, Region) {
  operators_.permute->combine_forward(stream, {rows, cut(saved, routing).row_of_slot, routing.weights, y});
}

void LocalExperts::combine_backward(Stream& stream, const TensorView& dy, const TensorView& rows,
                                    const Routing& routing, const TensorView& drows, const TensorView& dweights,
                                    Region saved, Region) {
  operators_.permute->combine_backward(stream,
                                       {rows, cut(saved, routing).row_of_slot, routing.weights, dy, drows, dweights});
}

void LocalExperts::dispatch_backward(Stream& stream, const TensorView& drows, const Routing& routing,
                                     const TensorView& dx, Region saved, Region) {
  operators_.permute->backward(stream, {drows, cut(saved, routing).row_of_slot, dx});
}

}  // namespace ananke
