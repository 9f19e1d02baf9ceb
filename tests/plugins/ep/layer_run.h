// One MoE layer without its router, run through a role "experts" as the decoder does, on ranks that are threads.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/roles/experts.h"

namespace ananke::testing {

using Floats = std::vector<float>;

// What all ranks' tokens are, one behind the other, and the experts' weights.
struct LayerCase {
  std::vector<std::int64_t> tokens;  // per rank
  std::int64_t most = 0;             // tokens per rank at most, as the plan says; 0: the most that there are
  std::int64_t experts = 4, k = 2, hidden = 8, width = 6;
  int groups = 1;  // > 1: a token takes its experts from k of them at most, the groups being equal parts of the experts
  int skew = 0;    // > 0: expert skew - 1 is every token's first choice
  unsigned seed = 1;
  bool recompute = false;
  int layers = 1;  // forwards in a row, then their backwards in reverse order
  std::int64_t all() const;
};

struct LayerData {
  Floats x, weights, dy, matrices;  // [T, H], [T, k], [T, H], [E, 3 H F]
  std::vector<std::int32_t> indices;
};
LayerData make_data(const LayerCase& c, int layer);

struct LayerResult {
  Floats y, dx, dweights, gradients;  // gradients [E, 3 H F]
};

struct RankReport {
  Traffic traffic;
  std::uint64_t reads = 0;                               // of the device
  double forward_seconds = 0, backward_seconds = 0;      // of all layers
  std::vector<std::string> collectives;                  // of the expert axis, as they were asked for
  std::map<std::string, std::uint64_t> planned, in_use;  // bytes by purpose: of plan(), and of the arena after start()
};

struct LayerRun {
  std::vector<LayerResult> layers;  // of all ranks' tokens
  std::vector<RankReport> ranks;
};

// With plugin ep of that config (text format) on as many ranks as c.tokens has.
LayerRun run_ep(const LayerCase& c, const std::string& config);
// With the built-in local experts on one rank that has all tokens.
LayerRun run_local(const LayerCase& c);

// For what must run while something else does: called on a rank's host thread, may put work on the stream it is given.
struct LayerHooks {
  // Around every exchange of the expert axis; bytes: that this rank receives from others, -1: the device alone knows.
  std::function<void(int rank, Stream&exchange, std::int64_t bytes)> exchange_begins, exchange_ended;
  // Before the experts compute with a chunk that has arrived.
  std::function<void(int rank, Stream& compute, int chunk, bool backward)> mlp_begins;
};

// Many cases on the same rank threads.
struct Sweep {
  int ranks = 1;
  int cases = 0;
  std::function<LayerCase(int)> each;
  std::function<std::string(int)> config;  // of ep; none: local experts, all tokens on rank 0
  LayerHooks hooks = {};
};
std::vector<LayerRun> sweep(const Sweep& what);

}  // namespace ananke::testing
