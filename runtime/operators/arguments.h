// What each operator demands of its arguments, the same for every backend: types and shapes that fit together, and
// memory. Each check throws Error(internal) (validate.h) and gives the sizes that the call is about. `saved` and
// `workspace` are the backend's to check: only it knows how much it needs.
//
// `elements` is the type of activations and of the matrices they are multiplied with: f32, or what a backend takes
// beyond it. What a contract calls a weight of a norm, a routing weight, a loss or the gradient of a weight is f32
// whatever it says.
#pragma once

#include "runtime/operators/operator_set.h"

namespace ananke::arguments {

struct EmbeddingSizes {
  std::int64_t tokens, vocabulary, hidden;
};
EmbeddingSizes check(const Embedding::Forward& a, DType elements = DType::f32);
EmbeddingSizes check(const Embedding::Backward& a, DType elements = DType::f32);

AddRmsNorm::Sizes check(const AddRmsNorm::Forward& a, DType elements = DType::f32);
AddRmsNorm::Sizes check(const AddRmsNorm::Backward& a, DType elements = DType::f32);

struct LinearSizes {
  std::int64_t tokens, in, out;
};
LinearSizes check(const Linear::Forward& a, DType elements = DType::f32);
LinearSizes check(const Linear::Backward& a, DType elements = DType::f32);

Attention::Sizes check(const Attention::Forward& a, DType elements = DType::f32);
Attention::Sizes check(const Attention::Backward& a, DType elements = DType::f32);

HeadLoss::Sizes check(const HeadLoss::Forward& a, DType elements = DType::f32);
HeadLoss::Sizes check(const HeadLoss::ForwardBackward& a, DType elements = DType::f32);

// `added`: of b
void check_add(const TensorView& a, const TensorView& b, const TensorView& y, DType elements, DType added);
inline void check_add(const TensorView& a, const TensorView& b, const TensorView& y, DType elements = DType::f32) {
  check_add(a, b, y, elements, elements);
}
void check_square_sum(const TensorView& x, const TensorView& sum, DType elements = DType::f32);
void check_add_in_order(const TensorView& terms, const TensorView& sum);
void check_reciprocal(const TensorView& x, const TensorView& y);
void check_hash(const TensorView& x, const TensorView& hash, DType elements = DType::f32);
void check(const Elementwise::Clip& a);

// Experts: arguments_experts.cpp

Router::Sizes check(const Router::Forward& a, DType elements = DType::f32);
Router::Sizes check(const Router::Backward& a, DType elements = DType::f32);

struct BalanceSizes {
  std::int64_t layers, experts, row;  // row: elements of one layer's statistics or load
};
BalanceSizes check(const RouterBalance::Collect& a);
BalanceSizes check(const RouterBalance::Factors& a);
BalanceSizes check(const RouterBalance::Load& a);
BalanceSizes check(const RouterBalance::UpdateBias& a);
BalanceSizes check(const RouterBalance::Summarise& a);

struct PermuteSizes {
  std::int64_t tokens, hidden, k;
  std::int64_t slots() const { return tokens * k; }
};
PermuteSizes check(const Permute::Forward& a, DType elements = DType::f32);
PermuteSizes check(const Permute::Backward& a, DType elements = DType::f32);
PermuteSizes check(const Permute::CombineForward& a, DType elements = DType::f32);
PermuteSizes check(const Permute::CombineBackward& a, DType elements = DType::f32);

GroupedMlp::Sizes check(const GroupedMlp::Forward& a, DType elements = DType::f32);
GroupedMlp::Sizes check(const GroupedMlp::Backward& a, DType elements = DType::f32);

struct ExchangePlanSizes {
  std::int64_t tokens, k, ranks, chunks;
};
struct ExchangeTokenSizes {
  std::int64_t tokens, hidden, ranks;
};
struct ExchangeExpandSizes {
  std::int64_t copies, rows, hidden, k, local;  // copies, rows: capacities
};
struct ExchangeCopySizes {
  std::int64_t copies, hidden, k, rows;  // copies, rows: capacities
};
ExchangePlanSizes check(const Exchange::Plan& a);
ExchangeTokenSizes check(const Exchange::Pack& a, DType elements = DType::f32);
ExchangeTokenSizes check(const Exchange::Collect& a, DType elements = DType::f32);
ExchangeExpandSizes check(const Exchange::Expand& a, DType elements = DType::f32);
ExchangeCopySizes check(const Exchange::Combine& a, DType elements = DType::f32);
ExchangeCopySizes check(const Exchange::CombineBackward& a, DType elements = DType::f32);
ExchangeCopySizes check(const Exchange::ExpandBackward& a, DType elements = DType::f32);

// Optimizers and what travels: arguments_optimizer.cpp

std::int64_t check(const AdamWUpdate::Arguments& a, DType elements = DType::f32);
std::int64_t check(const Momentum::Accumulate& a);
std::int64_t check(const Momentum::Apply& a);
NewtonSchulz::Sizes check(const NewtonSchulz::Arguments& a);
void check(const Wire::ToBf16& a);
void check_from_bf16(const TensorView& x, const TensorView& y);
void check(const Wire::LandingSum& a);
// `op`: quantise or dequantise; elements: of values
void check_pieces(const char* op, const TensorView& pieces, const TensorView& values, const TensorView& bytes,
                  DType elements = DType::f32);

}  // namespace ananke::arguments
