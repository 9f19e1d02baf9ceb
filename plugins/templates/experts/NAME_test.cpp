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
  const StartContext context = bench.start_context();
  experts.start({context, sizes, 1, 1});
  Arena& memory = bench.device().memory();
  const Buffer saved = memory.allocate(experts.chunk_saved(sizes), "saved");
  const Buffer workspace = memory.allocate(experts.workspace(sizes), "workspace");
  const Buffer x = bench.place({10, 20, 30}), weights = bench.place({1, 2, 3}), y = bench.place({0, 0, 0});
  const Buffer indices = bench.place_integers({1, 0, 1}), counts = bench.place_integers({1, 2});
  const Buffer rows = bench.place({0, 0, 0}), offsets = bench.place_integers({0, 0, 0});

  ExpertExchange exchange{};
  exchange.routing = {indices.view(DType::i32, {3, 1}), weights.view(DType::f32, {3, 1}), counts.view(DType::i32, {2})};
  exchange.x = x.view(DType::f32, {3, 1});
  exchange.y = y.view(DType::f32, {3, 1});
  exchange.workspace = {workspace.data(), workspace.bytes()};
  ExpertChunk chunk{};
  chunk.rows = chunk.outputs = rows.view(DType::f32, {3, 1});  // experts that change nothing
  chunk.offsets = offsets.view(DType::i32, {3});
  chunk.saved = {saved.data(), saved.bytes()};

  experts.begin(bench.compute(), exchange);
  experts.dispatch_begin(bench.compute(), exchange, chunk);
  experts.dispatch_end(bench.compute(), exchange, chunk);
  expect(bench.values(chunk.rows) == std::vector<float>{20, 10, 30}, "rows are grouped by expert");
  experts.combine_begin(bench.compute(), exchange, chunk);
  experts.combine_end(bench.compute(), exchange, chunk);
  expect(bench.values(exchange.y) == std::vector<float>{10, 40, 90}, "combine weighs them");
  std::puts("ok");
}
