#include "plugins/activation_offload/layout.h"

#include <gtest/gtest.h>

namespace ananke::activation_offload {
namespace {

constexpr std::size_t one = 256 * 64 * 4;  // 256 tokens of 64 f32

Layout layout(const Settings& settings, int layers, int microbatches = 1) {
  return make_layout(settings, {layers, microbatches, one, 64, DType::f32});
}

using Layers = std::vector<int>;

TEST(OffloadLayout, SpreadsLayersEvenlyAndNeverMovesTheLast) {
  EXPECT_EQ(layout({.fraction = 1}, 5).moved, (Layers{0, 1, 2, 3}));
  EXPECT_EQ(layout({.fraction = 0.5}, 8).moved, (Layers{1, 3, 5, 6}));
  EXPECT_EQ(layout({.fraction = 0.25}, 9).moved, (Layers{3, 7}));
  EXPECT_EQ(layout({.fraction = 0.01}, 9).moved, Layers{});
  EXPECT_EQ(layout({.fraction = 1}, 1).moved, Layers{});
  for (int layers = 1; layers < 20; ++layers) {
    for (int tenths = 0; tenths <= 10; ++tenths) {
      const Layout got = layout({.fraction = tenths / 10.0}, layers);
      const auto wanted = std::min<std::size_t>(static_cast<std::size_t>((layers * tenths + 5) / 10),
                                                static_cast<std::size_t>(layers - 1));
      EXPECT_EQ(got.moved.size(), wanted) << layers << " layers, " << tenths;
      EXPECT_TRUE(got.moved.empty() || got.moved.back() < layers - 1);
    }
  }
}

TEST(OffloadLayout, HasPlacesForWhatIsThereAtOnceAndTheWindow) {
  EXPECT_EQ(layout({}, 8).places, 3);
  EXPECT_EQ(layout({}, 8, 4).places, 6);
  EXPECT_EQ(layout({.window = 0}, 8, 4).places, 5);
  EXPECT_EQ(layout({.window = 10 * one + 1}, 8, 4).places, 10);
  EXPECT_EQ(layout({.window = 1000 * one}, 8, 4).places, 28) << "all there are";
  EXPECT_EQ(layout({.fraction = 0}, 8).places, 0);
  EXPECT_EQ(layout({.fraction = 0.5}, 8, 4).residents, 5 * 4);
  EXPECT_EQ(layout({}, 8).device_inputs(), (2 + 3) * one);
  EXPECT_EQ(layout({}, 8).host(), 7 * one);
}

TEST(OffloadLayout, KeepsToABudget) {
  EXPECT_EQ(layout({.budget = 7 * one}, 8).moved.size(), 7u);
  EXPECT_EQ(layout({.budget = 7 * one - 1}, 8).moved.size(), 6u);
  EXPECT_EQ(layout({.budget = 7 * one}, 8, 3).moved, (Layers{3, 6}));
  EXPECT_EQ(layout({.budget = 0}, 8).moved.size(), 0u);
  const Settings settings{.budget = 4 * one};
  EXPECT_EQ(describe(layout(settings, 8), settings, {8, 1, one, 64, DType::f32}),
            "inputs of 4 of 8 layers (1, 3, 5, 6) wait on the host: 256 KiB there; 512 KiB on the device instead of "
            "576 KiB");
  const Settings nothing{.budget = 0};
  EXPECT_EQ(describe(layout(nothing, 8), nothing, {8, 1, one, 64, DType::f32}),
            "no input leaves the device: fraction 1 of 8 layers, of which the last never does, in a budget of 0 B");
}

TEST(OffloadLayout, InFp8HasACodeForEachElementAndAScaleForEachBlock) {
  const Layout f32 = make_layout({.fp8 = true}, {8, 2, 300 * 200 * 4, 200, DType::f32});
  EXPECT_EQ(f32.wire, 300u * 200 + 3 * 2);
  EXPECT_EQ(f32.scratch, 0u);
  EXPECT_EQ(f32.host(), 7u * 2 * f32.wire_stride);
  const Layout bf16 = make_layout({.fp8 = true}, {8, 2, 300 * 200 * 2, 200, DType::bf16});
  EXPECT_EQ(bf16.wire, f32.wire);
  EXPECT_GE(bf16.scratch, 300u * 200 * 4);
  EXPECT_EQ(bf16.device_wire(), 4 * bf16.wire_stride + bf16.scratch + 3 * sizeof(Wire::BlockPiece));
  const std::vector<Wire::BlockPiece> pieces = block_rows({8, 2, 300 * 200 * 2, 200, DType::bf16});
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(block_rows({8, 2, 300 * 200 * 2 + 200, 200, DType::bf16}).back().count, 44 * 200) << "half a token is none";
  EXPECT_EQ(pieces[2].begin, 256 * 200);
  EXPECT_EQ(pieces[2].count, 44 * 200);
  EXPECT_EQ(pieces[2].scales, 300 * 200 + 2 * 2);
}

}  // namespace
}  // namespace ananke::activation_offload
