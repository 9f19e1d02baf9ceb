#include "runtime/model/local_experts.h"

#include <limits>

#include "runtime/base/error.h"
#include "runtime/model/region_cutter.h"

namespace ananke {
namespace {

TensorView row_of_slot(Region region, std::int64_t slots) {
  RegionCutter cutter(region);
  return cutter.tensor(DType::i32, {slots});
}

// The rows that this microbatch fills: one per token and choice.
TensorView filled(const TensorView& rows, const Routing& routing) {
  const std::int64_t slots = routing.indices.elements();
  if (rows.shape.rank() == 1) return rows.slice(0, slots);
  return rows.slice(0, slots * rows.shape[1]).reshaped({slots, rows.shape[1]});
}

}  // namespace

std::int64_t LocalExperts::capacity(const ExpertSizes& s) const {
  const std::int64_t rows = s.tokens * s.k;
  if (rows > std::numeric_limits<std::int32_t>::max()) {
    fail(ErrorKind::config,
         "a microbatch of {} tokens that visit {} experts each makes {} rows, more than 32 bits count; lower "
         "training.rows_per_microbatch",
         s.tokens, s.k, rows);
  }
  return rows;
}

std::size_t LocalExperts::chunk_saved(const ExpertSizes& s) const {
  RegionCutter cutter;
  cutter.tensor(DType::i32, {s.tokens * s.k});
  return cutter.used();
}

std::size_t LocalExperts::workspace(const ExpertSizes& s) const {
  return operators_->permute->workspace(s.tokens * s.k, s.experts);
}

void LocalExperts::start(const ExpertsStart& start) {
  ANANKE_CHECK(start.sizes.ranks == 1, "tokens stay where they are, but {} ranks share out the experts",
               start.sizes.ranks);
}

void LocalExperts::dispatch_end(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) {
  const std::int64_t slots = a.routing.indices.elements();
  operators_->permute->forward(compute,
                               {a.x, a.routing.indices, chunk.offsets.elements() - 1, filled(chunk.rows, a.routing),
                                chunk.offsets, row_of_slot(chunk.saved, slots)},
                               a.workspace);
}

void LocalExperts::combine_begin(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) {
  const TensorView places = row_of_slot(chunk.saved, a.routing.indices.elements());
  operators_->permute->combine_forward(compute, {filled(chunk.outputs, a.routing), places, a.routing.weights, a.y});
}

void LocalExperts::combine_backward_end(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) {
  const TensorView places = row_of_slot(chunk.saved, a.routing.indices.elements());
  operators_->permute->combine_backward(compute, {places, a.routing.weights, a.dy, filled(chunk.d_weighted, a.routing),
                                                  filled(chunk.row_weights, a.routing)});
}

void LocalExperts::dispatch_backward_begin(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) {
  const TensorView places = row_of_slot(chunk.saved, a.routing.indices.elements());
  operators_->permute->backward(
      compute, {filled(chunk.d_rows, a.routing), places, a.dx, filled(chunk.d_row_weights, a.routing), a.dweights});
}

}  // namespace ananke
