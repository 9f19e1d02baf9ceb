// The checks that all backends share, where a backend takes more than f32. What each refuses otherwise: the tests of
// the host's operators.
#include "runtime/operators/arguments.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "runtime/base/error.h"

namespace ananke {
namespace {

alignas(64) char memory[64];  // never touched

TensorView tensor(DType dtype, Shape shape) { return {memory, dtype, shape}; }

template <class Arguments>
std::string refusal(const Arguments& a, DType elements) {
  try {
    arguments::check(a, elements);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::internal);
    return error.what();
  }
  return "";
}

TEST(Arguments, AreOfTheTypeThatTheCallComputesIn) {
  const auto linear = [](DType x, DType weight, DType y) {
    return Linear::Forward{tensor(x, {2, 3}), tensor(weight, {5, 3}), tensor(y, {2, 5})};
  };
  using enum DType;
  EXPECT_EQ(refusal(linear(f32, f32, f32), f32), "");
  EXPECT_EQ(refusal(linear(bf16, bf16, bf16), bf16), "");
  EXPECT_EQ(refusal(linear(bf16, bf16, bf16), f32), "linear forward: x is bf16 [2, 3], but f32 [2, 3] is needed");
  EXPECT_EQ(refusal(linear(bf16, f32, bf16), bf16), "linear forward: weight is f32 [5, 3], but bf16 [5, 3] is needed");
  EXPECT_EQ(refusal(linear(bf16, bf16, f32), bf16), "linear forward: y is f32 [2, 5], but bf16 [2, 5] is needed");
}

TEST(Arguments, LeaveGradientsOfWeightsInF32) {
  using enum DType;
  const auto backward = [](DType dweight) {
    return Linear::Backward{
        tensor(bf16, {2, 3}),   tensor(bf16, {5, 3}), tensor(bf16, {2, 5}), tensor(bf16, {2, 3}), false,
        tensor(dweight, {5, 3})};
  };
  EXPECT_EQ(refusal(backward(f32), bf16), "");
  EXPECT_EQ(refusal(backward(bf16), bf16), "linear backward: dweight is bf16 [5, 3], but f32 [5, 3] is needed");
}

TEST(Arguments, LeaveNormsRoutersAndLossesInF32) {
  using enum DType;
  const TensorView x = tensor(bf16, {2, 4});
  EXPECT_EQ(refusal(AddRmsNorm::Forward{x, {}, tensor(bf16, {4}), {}, x, 1e-6, {}, {}}, bf16),
            "add_rms_norm forward: weight is bf16 [4], but f32 [4] is needed");
  EXPECT_EQ(refusal(Router::Forward{.x = x,
                                    .gate = tensor(bf16, {3, 4}),
                                    .bias = {},
                                    .rule = {},
                                    .replay = false,
                                    .indices = tensor(i32, {2, 1}),
                                    .weights = tensor(f32, {2, 1}),
                                    .counts = tensor(i32, {3}),
                                    .statistics = {},
                                    .saved = {},
                                    .workspace = {}},
                    bf16),
            "router forward: gate is bf16 [3, 4], but f32 [3, 4] is needed");
  EXPECT_EQ(
      refusal(HeadLoss::Forward{x, tensor(bf16, {7, 4}), tensor(i32, {2}), tensor(f64, {1}), tensor(bf16, {2, 7}), {}},
              bf16),
      "head_loss forward: logits is bf16 [2, 7], but f32 [2, 7] is needed");
}

TEST(Arguments, KnownOffsetsAreOfEveryGroupAndRiseInsideTheRows) {
  const TensorView rows = tensor(DType::f32, {5, 3});
  const MatrixStack wide{tensor(DType::f32, {4, 3}), 12}, tall{tensor(DType::f32, {3, 4}), 12};
  const auto refused = [&](std::vector<std::int64_t> known) {
    return refusal(GroupedMlp::Forward{rows, tensor(DType::i32, {3}), {wide, wide, tall}, rows, {}, {}, known},
                   DType::f32);
  };
  EXPECT_EQ(refused({}), "");
  EXPECT_EQ(refused({0, 2, 5}), "");
  EXPECT_EQ(refused({0, 0, 0}), "");
  const auto names = [&](std::vector<std::int64_t> known, const std::string& part) {
    const std::string text = refused(std::move(known));
    EXPECT_NE(text.find("grouped_mlp forward: " + part), std::string::npos) << text;
  };
  names({0, 5}, "2 known offsets for 2 groups");
  names({1, 2, 5}, "known offset 0 is 1; offsets rise from 0 to at most 5 rows");
  names({0, 3, 2}, "known offset 2 is 2; offsets rise from 0 to at most 5 rows");
  names({0, 3, 6}, "known offset 2 is 6; offsets rise from 0 to at most 5 rows");
}

TEST(Arguments, WeightsOfRowsComeWithTheirGradients) {
  const TensorView rows = tensor(DType::f32, {5, 3}), each = tensor(DType::f32, {5});
  const MatrixStack wide{tensor(DType::f32, {4, 3}), 12}, tall{tensor(DType::f32, {3, 4}), 12};
  const auto refused = [&](const TensorView& weights, const TensorView& gradients) {
    const GroupedMlp::Weights matrices{wide, wide, tall};
    return refusal(
        GroupedMlp::Backward{
            rows, tensor(DType::i32, {3}), matrices, rows, rows, matrices, {}, {}, {}, weights, gradients},
        DType::f32);
  };
  EXPECT_EQ(refused({}, {}), "");
  EXPECT_EQ(refused(each, each), "");
  for (const auto& [weights, gradients] :
       {std::pair{each, TensorView{}}, std::pair{TensorView{}, each}, std::pair{tensor(DType::f32, {4}), each}}) {
    EXPECT_NE(refused(weights, gradients).find("row_weights is"), std::string::npos) << refused(weights, gradients);
  }
}

TEST(Arguments, GiveTheSizesOfTheCall) {
  const arguments::LinearSizes n = arguments::check(
      Linear::Forward{tensor(DType::f32, {2, 3}), tensor(DType::f32, {5, 3}), tensor(DType::f32, {2, 5})});
  EXPECT_EQ(n.tokens, 2);
  EXPECT_EQ(n.in, 3);
  EXPECT_EQ(n.out, 5);
}

}  // namespace
}  // namespace ananke
