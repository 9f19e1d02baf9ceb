// Rows are grouped by expert, and come back to their tokens. Argument: the job file.
#include <cstdio>
#include <cstdlib>

#include "runtime/engine/plugin_bench.h"

using namespace ananke;

void expect(bool holds, const char* what) {
  if (!holds) std::fprintf(stderr, "FAILED: %s\n", what), std::exit(1);
}

int main(int, char** argv) {
  PluginBench bench(argv[1], {"plugins.@NAME@.report_every=1"});
  Experts& experts = *bench.roles().experts;
  const ExpertSizes sizes{.tokens = 3, .hidden = 1, .experts = 2, .k = 1};
  Arena& memory = bench.device().memory();
  const Buffer saved = memory.allocate(experts.saved(sizes), "saved");
  const Buffer workspace = memory.allocate(experts.workspace(sizes), "workspace");
  const Buffer x = bench.place({10, 20, 30}), weights = bench.place({1, 2, 3}), y = bench.place({0, 0, 0});
  const Buffer indices = bench.place_integers({1, 0, 1}), counts = bench.place_integers({1, 2});
  const Buffer rows = bench.place(std::vector<float>(static_cast<std::size_t>(experts.capacity(sizes)), 0));
  const Routing routing{indices.view(DType::i32, {3, 1}), weights.view(DType::f32, {3, 1}),
                        counts.view(DType::i32, {2})};
  const Region kept{saved.data(), saved.bytes()}, scratch{workspace.data(), workspace.bytes()};

  const ExpertRows out =
      experts.dispatch(bench.compute(), x.view(DType::f32, {3, 1}), routing,
                       rows.view(DType::f32, {experts.capacity(sizes), 1}), kept, scratch);
  expect(bench.values(out.rows) == std::vector<float>{20, 10, 30}, "rows are grouped by expert");
  experts.combine(bench.compute(), out.rows, routing, y.view(DType::f32, {3, 1}), kept, scratch);
  expect(bench.values(y.view(DType::f32, {3, 1})) == std::vector<float>{10, 40, 90}, "combine weighs them");
  std::puts("ok");
}
