// Two updates by hand, one that is not applied. Argument: the job file.
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "runtime/engine/plugin_bench.h"

using namespace ananke;

void expect(bool holds, const char* what) {
  if (!holds) std::fprintf(stderr, "FAILED: %s\n", what), std::exit(1);
}

int main(int, char** argv) {
  PluginBench bench(argv[1], {"plugins.@NAME@.lr=0.5", "plugins.@NAME@.momentum=0.5"});
  Optimizer& optimizer = *bench.roles().optimizers.at("@NAME@");
  const ParameterTable table(bench.job().model());
  const Parameter& parameter = table.parameters()[0];
  expect(optimizer.states(parameter).size() == 1, "one state per element");

  const Buffer weight = bench.place({1, 2}), gradient = bench.place({4, -2}), state = bench.place({0, 0});
  const Buffer scale = bench.place({0.5f}), yes = bench.place_integers({1}), no = bench.place_integers({0});
  const TensorView w = weight.view(DType::f32, {2}), m = state.view(DType::f32, {2});
  const auto update = [&](const Buffer& finite) {
    optimizer.update(bench.compute(), bench.operators(),
                     {parameter, 0, w, gradient.view(DType::f32, {2}), {&m, 1}, 1, 1.0, scale.view(DType::f32, {1}),
                      finite.view(DType::i32, {1})});
  };
  update(yes);  // buffer 2, -1
  expect(bench.values(w) == std::vector<float>{0, 2.5f}, "the first update");
  update(yes);  // buffer 3, -1.5
  expect(bench.values(w) == std::vector<float>{-1.5f, 3.25f}, "the second one, with momentum");
  update(no);
  expect(bench.values(w) == std::vector<float>{-1.5f, 3.25f}, "no update where the step is not finite");
  std::puts("ok");
}
