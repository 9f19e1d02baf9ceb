// How much of its communication a whole job hides: six layers, one line per case.
//   overlap_bench sleeping|exact [part of a case's name]
#include <cstdio>
#include <cstring>
#include <exception>
#include <vector>

#include "tests/bench/overlap_run.h"

namespace ananke::testing {
namespace {

std::vector<OverlapCase> cases() {
  std::vector<OverlapCase> all;
  const auto add = [&](OverlapCase c) { all.push_back(std::move(c)); };
  for (const int network : {2, 4, 8, 16}) {
    add({.name = "fsdp dense, network " + std::to_string(network), .network = network});
  }
  for (const int network : {2, 8, 16}) {
    add({.name = "fsdp experts, network " + std::to_string(network), .experts = 8, .network = network});
  }
  for (const int chunks : {1, 2, 4}) {
    for (const int network : {4, 16}) {
      add({.name = "fsdp+ep chunks " + std::to_string(chunks) + ", network " + std::to_string(network),
           .mesh = {1, 4, 2},
           .experts = 8,
           .chunks = chunks,
           .layer = 40,
           .network = network,
           .nvlink = 4});
    }
  }
  add({.name = "replicate 2", .mesh = {2, 2, 1}, .experts = 8, .network = 4});
  add({.name = "muon", .experts = 8, .muon = true, .newton_schulz = 2, .network = 4});
  add({.name = "muon small buckets",
       .experts = 8,
       .muon = true,
       .changes = "matrix_updates { bucket: '32 KiB' }",
       .newton_schulz = 2,
       .network = 4});
  add({.name = "slow rank", .experts = 8, .network = 4, .slow_rank = 1, .slow_factor = 1.5});
  add({.name = "recompute", .experts = 8, .training = "recompute: FULL", .network = 4});
  add({.name = "two microbatches", .training = "rows_per_microbatch: 1", .tokens = 64, .network = 4});
  add({.name = "real compute", .hidden = 256, .tokens = 512, .layer = 0, .head = 0, .network = 4});
  return all;
}

int run(ClockKind clock, const char* filter) {
  std::printf("%-32s %9s %9s %9s %7s %7s %7s %9s %9s %6s %9s\n", "milliseconds of a step", "compute", "network",
              "nvlink", "first", "last", "edges", "step", "bound", "ratio", "uncovered");
  for (OverlapCase c : cases()) {
    c.clock = clock;
    if (filter && !std::strstr(c.name.c_str(), filter)) continue;
    const OverlapReport r = measure_overlap(c);
    std::printf("%-32s %9.1f %9.1f %9.1f %7.1f %7.1f %7.1f %9.1f %9.1f %6.3f %9.1f\n", c.name.c_str(), 1e3 * r.compute,
                1e3 * r.network, 1e3 * r.nvlink, 1e3 * r.first_gather, 1e3 * r.last_reduce, 1e3 * r.exchange_edges,
                1e3 * r.step, 1e3 * r.bound(), r.ratio(), 1e3 * (r.step - std::max(r.compute, r.communication())));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace ananke::testing

int main(int argc, char** argv) {
  try {
    const bool exact = argc > 1 && std::strcmp(argv[1], "exact") == 0;
    return ananke::testing::run(exact ? ananke::testing::ClockKind::exact : ananke::testing::ClockKind::sleeping,
                                argc > 2 ? argv[2] : nullptr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "overlap_bench: %s\n", error.what());
    return 1;
  }
}
