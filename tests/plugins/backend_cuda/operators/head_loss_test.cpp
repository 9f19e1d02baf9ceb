#include "tests/plugins/backend_cuda/operators/bench.h"

namespace ananke::cuda {
namespace {

struct CudaHeadLoss : CudaOperator {};

Ints some_targets(const HeadLoss::Sizes& n) {
  Ints targets(static_cast<std::size_t>(n.tokens));
  for (std::size_t t = 0; t < targets.size(); ++t) {
    targets[t] = t % 5 == 3 ? -1 : static_cast<std::int32_t>((t * 7 + t / 3) % static_cast<std::size_t>(n.vocabulary));
  }
  return targets;
}

Results head_loss(Bench& bench, const HeadLoss::Sizes& n, bool with_logits, const Ints& target_values) {
  const Tensor x = bench.activation(random_floats(n.tokens * n.hidden, 1, 2), {n.tokens, n.hidden});
  const Tensor weight = bench.activation(random_floats(n.vocabulary * n.hidden, 2), {n.vocabulary, n.hidden});
  const Tensor targets = bench.tensor(target_values, {n.tokens}), scale = bench.tensor(Floats{0.25f}, {1});
  const Tensor loss = bench.tensor(Doubles{0.5}, {1}), again = bench.tensor(Doubles{0.5}, {1});
  const Tensor dx = bench.blank_activation({n.tokens, n.hidden});
  const Tensor dweight = bench.tensor(random_floats(n.vocabulary * n.hidden, 3), {n.vocabulary, n.hidden});
  const Tensor logits = bench.blank(DType::f32, {n.tokens, n.vocabulary});
  const TensorView wanted = with_logits ? logits.view : TensorView{};
  const Region workspace = bench.scratch(bench->head_loss->workspace(n));
  bench->head_loss->forward(bench.stream(), {x, weight, targets, loss, wanted, workspace});
  bench->head_loss->forward_backward(bench.stream(),
                                     {x, weight, targets, again, scale, dx, dweight, wanted, workspace});
  Results results = {result("loss", bench.values<double>(loss), 1e-6, 1e-6),
                     result("loss again", bench.values<double>(again), 1e-6, 1e-6),
                     result("dx", bench.floats(dx), 1e-5, 0.02), result("dweight", bench.floats(dweight), 1e-5, 0.01)};
  if (with_logits) results.push_back(result("logits", bench.floats(logits), 1e-5, 1e-5));
  return results;
}

TEST_F(CudaHeadLoss, MatchesTheHost) {
  for (const HeadLoss::Sizes& n : {HeadLoss::Sizes{0, 3, 5},
                                   {1, 1, 1},
                                   {3, 0, 5},
                                   {7, 5, 3},
                                   {130, 67, 101},
                                   {67, 32, 511},
                                   {5, 16, 512},
                                   {9, 24, 1027},
                                   {300, 64, 4096}}) {
    for (const bool logits : {false, true}) {
      compare("head_loss " + std::to_string(n.tokens) + " x " + std::to_string(n.vocabulary),
              [&](Bench& bench) { return head_loss(bench, n, logits, some_targets(n)); });
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaHeadLoss, MatchesTheHostOverSeveralChunks) {
  const HeadLoss::Sizes n{8200, 8, 33};
  compare("head_loss in chunks", [&](Bench& bench) { return head_loss(bench, n, true, some_targets(n)); });
}

TEST_F(CudaHeadLoss, SaysWhichTargetIsNone) {
  expect_refused(
      [](Bench& bench) {
        head_loss(bench, {3, 2, 5}, false, {1, 5, -1});
      },
      {"head_loss", "target 5 of a vocabulary of 5 at token 1"});
}

}  // namespace
}  // namespace ananke::cuda
