// How much of its communication a whole job hides: six layers, one line per case.
//   overlap_bench sleeping|exact [part of a case's name]
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "runtime/base/log.h"
#include "tests/bench/overlap_run.h"

namespace ananke::testing {
namespace {

std::vector<OverlapCase> cases(ClockKind clock) {
  std::vector<OverlapCase> all;
  const auto add = [&](OverlapCase c) {
    c.clock = clock;
    all.push_back(std::move(c));
  };
  for (const int experts : {0, 8}) {
    for (const int network : {2, 4, 8, 16}) {
      add({.name = experts ? "fsdp, experts" : "fsdp, dense", .experts = experts, .network = network});
    }
  }
  for (const int network : {4, 16}) {
    for (const int chunks : {1, 2, 4}) {
      add({.name = "ep, chunks: " + std::to_string(chunks),
           .mesh = {1, 4, 2},
           .experts = 8,
           .chunks = chunks,
           .layer = 40,
           .network = network,
           .nvlink = 4});
    }
  }
  add({.name = "replicate: 2", .mesh = {2, 2, 1}, .experts = 8, .network = 4});
  add({.name = "recompute", .experts = 8, .training = "recompute: FULL", .network = 4});
  add({.name = "two microbatches", .experts = 8, .training = "rows_per_microbatch: 1", .tokens = 64, .network = 4});
  add({.name = "muon", .mesh = {1, 3, 1}, .muon = true, .network = 4, .newton_schulz = 2});
  add({.name = "one slow rank", .experts = 8, .network = 4, .slow_rank = 1, .slow_factor = 1.5});
  add({.name = "no prefetch", .experts = 8, .fsdp = "prefetch_blocks: 0 reduce_blocks: 0", .network = 4});
  if (clock == ClockKind::sleeping) {
    add({.name = "real compute", .hidden = 192, .tokens = 512, .layer = 0, .head = 0, .network = 4});
  }
  return all;
}

int run(ClockKind clock, const char* filter) {
  std::printf("%-18s %8s %9s %9s %9s %7s %7s %7s %9s %9s %6s\n", "ms per step", "a call", "compute", "network",
              "nvlink", "first", "last", "edges", "step", "bound", "ratio");
  for (const OverlapCase& c : cases(clock)) {
    if (filter && !std::strstr(c.name.c_str(), filter)) continue;
    const OverlapReport r = measure_overlap(c);
    std::printf("%-18s %8d %9.1f %9.1f %9.1f %7.1f %7.1f %7.1f %9.1f %9.1f %6.3f\n", c.name.c_str(), c.network,
                1e3 * r.compute, 1e3 * r.network, 1e3 * r.nvlink, 1e3 * r.first_gather, 1e3 * r.last_reduce,
                1e3 * r.exchange_edges, 1e3 * r.step, 1e3 * r.bound(), r.ratio());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace ananke::testing

int main(int argc, char** argv) {
  using ananke::testing::ClockKind;
  const std::string clock = argc > 1 ? argv[1] : "";
  if (clock != "sleeping" && clock != "exact") {
    std::fprintf(stderr, "overlap_bench: say by which clock, sleeping or exact\n");
    return 2;
  }
  try {
    ananke::open_log("/dev/null", "bench", ananke::LogLevel::warning);
    return ananke::testing::run(clock == "exact" ? ClockKind::exact : ClockKind::sleeping,
                                argc > 2 ? argv[2] : nullptr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "overlap_bench: %s\n", error.what());
    return 1;
  }
}
