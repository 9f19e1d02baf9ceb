#include "tests/plugins/backend_host/operators/far_tensor.h"

namespace ananke::host {
namespace {

// A case of the field, 524,288 rows of 7,168 in bf16, scaled to the same bytes: there and back.
TEST_F(Far, PermuteAndCombine) {
  constexpr std::int64_t tokens = 524'290, hidden = 4'096, experts = 4;
  Ints indices(tokens), offsets(experts + 1), row_of_slot(tokens);
  for (std::int64_t t = 0; t < tokens; ++t) indices[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(t % 3);
  indices.back() = experts - 1;  // so that it is the last row as well as the last token
  const TensorView vi = view(indices, {tokens, 1}), vo = view(offsets, {experts + 1}), vr = view(row_of_slot, {tokens});
  const Shape shape{tokens, hidden};
  Floats weights(tokens, 1.0f), row_weights(tokens);
  weights.back() = 0.5f;
  const TensorView vw = view(weights, {tokens, 1});
  Scratch workspace(host->permute->workspace(tokens, experts));
  const auto x = FarTensor::zeros(shape);
  fill(x.last(hidden), 1);
  const Floats row = floats_of(x.last(hidden));
  Floats half = row;
  for (float& value : half) value *= 0.5f;
  {
    const auto rows = FarTensor::sink(shape, hidden);
    host->permute->forward(host.stream, {x.view(), vi, experts, rows.view(), vo, vr}, workspace.region());
    host.finish();
    expect_same("rows", rows.last(hidden), row);
  }
  EXPECT_EQ(row_of_slot.back(), tokens - 1);
  {
    const auto dx = FarTensor::sink(shape, hidden);
    host->permute->backward(host.stream, {x.view(), vr, dx.view()});
    host.finish();
    expect_same("dx", dx.last(hidden), row);
  }
  {
    const auto y = FarTensor::sink(shape, hidden);
    host->permute->combine_forward(host.stream, {x.view(), vr, vw, y.view()});
    host.finish();
    expect_same("y", y.last(hidden), half);
  }
  const auto d_weighted = FarTensor::sink(shape, hidden);
  host->permute->combine_backward(host.stream, {vr, vw, x.view(), d_weighted.view(), view(row_weights, {tokens})});
  host.finish();
  expect_same("d_weighted", d_weighted.last(hidden), row);
  EXPECT_EQ(row_weights.back(), 0.5f);
  EXPECT_EQ(row_weights.front(), 1.0f);
}

}  // namespace
}  // namespace ananke::host
