// Random cases of the exchange against one rank.
#pragma once

#include <random>

#include "tests/plugins/ep/compare.h"

namespace ananke::testing {

struct RandomCase {
  LayerCase layer;
  int chunks = 1;
  DType wire = DType::f32;
  std::string config() const {
    return "chunks: " + std::to_string(chunks) + (wire == DType::bf16 ? " wire: BF16" : "");
  }
  std::string text() const;
};

inline RandomCase random_case(int ranks, unsigned seed) {
  std::mt19937 engine(seed * 97 + static_cast<unsigned>(ranks));
  const auto pick = [&](std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(engine);
  };
  RandomCase c;
  for (int rank = 0; rank < ranks; ++rank) c.layer.tokens.push_back(pick(0, 3) == 0 ? 0 : pick(0, 40));
  c.layer.most = pick(0, 2) == 0 ? pick(1, 60) : 0;
  c.layer.groups = pick(0, 1) == 0 ? 1 : static_cast<int>(pick(2, 4));
  c.layer.experts = c.layer.groups * pick(1, c.layer.groups > 1 ? 4 : 13);
  c.layer.k = pick(1, std::min<std::int64_t>(c.layer.experts, 8));
  c.layer.hidden = pick(1, 19);
  c.layer.width = pick(1, 7);
  c.layer.skew = pick(0, 3) == 0 ? static_cast<int>(pick(1, c.layer.experts)) : 0;
  c.layer.seed = seed;
  c.layer.recompute = pick(0, 1) == 1;
  c.layer.layers = static_cast<int>(pick(1, 3));
  c.chunks = static_cast<int>(pick(1, 6));
  c.wire = pick(0, 4) == 0 ? DType::bf16 : DType::f32;
  return c;
}

inline std::string RandomCase::text() const {
  std::string text = "tokens";
  for (const std::int64_t tokens : layer.tokens) text += " " + std::to_string(tokens);
  return text + " of at most " + std::to_string(layer.most) + ", " + std::to_string(layer.experts) + " experts in " +
         std::to_string(layer.groups) + " groups, k " + std::to_string(layer.k) + ", hidden " +
         std::to_string(layer.hidden) + ", skew " + std::to_string(layer.skew) + ", recompute " +
         std::to_string(layer.recompute) + ", seed " + std::to_string(layer.seed) + ", " + config();
}

inline void sweep_random_cases(int ranks, int cases, unsigned first_seed) {
  const auto each = [&](int i) { return random_case(ranks, first_seed + static_cast<unsigned>(i)); };
  const std::vector<LayerRun> runs =
      sweep({ranks, cases, [&](int i) { return each(i).layer; }, [&](int i) { return each(i).config(); }});
  const std::vector<LayerRun> host = sweep({ranks, cases, [&](int i) { return each(i).layer; },
                                            [&](int i) { return with(each(i).config(), Counts::host); }});
  const std::vector<LayerRun> wanted = sweep({1, cases, [&](int i) { return each(i).layer; }, {}});
  for (int i = 0; i < cases; ++i) {
    const RandomCase c = each(i);
    SCOPED_TRACE(c.text());
    expect_same_layers(runs[i], wanted[i], c.wire == DType::f32 ? 5e-6 : 5e-2);
    expect_well_behaved(runs[i], c.layer, c.chunks, c.wire);
    expect_well_behaved(host[i], c.layer, c.chunks, c.wire, Counts::host);
    expect_same_bits(runs[i], host[i]);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace ananke::testing
