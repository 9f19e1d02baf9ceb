// The one rotary-position cache of a model, shared by all layers.
#pragma once

#include <cstdint>
#include <vector>

namespace ananke {

struct RopeCache {
  std::vector<float> cosine, sine;  // [positions, head_dim / 2]
};

// cos and sin of p * theta^(-2i / head_dim) (Su et al. 2021), with the frequencies and angles rounded to f32 as
// transformers has them, so that long positions agree with models trained there.
RopeCache make_rope_cache(std::int64_t positions, std::int64_t head_dim, double theta);

}  // namespace ananke
