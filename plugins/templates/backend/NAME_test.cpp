// The operator against the one it replaces, forward and backward. Argument: the job file.
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "runtime/engine/inner_role.h"
#include "runtime/engine/plugin_bench.h"

using namespace ananke;

constexpr std::int64_t rows = 70, width = 48;

struct Result {
  std::vector<float> h, y, dh, dweight;
};

std::vector<float> numbers(std::size_t count, double seed) {
  std::vector<float> values;
  for (std::size_t i = 0; i < count; ++i) values.push_back(static_cast<float>(std::sin(seed + 0.7 * static_cast<double>(i))));
  return values;
}

Result run(PluginBench& bench, AddRmsNorm& norm) {
  const auto all = static_cast<std::size_t>(rows * width), one = static_cast<std::size_t>(width);
  const Shape matrix{rows, width};
  const AddRmsNorm::Sizes sizes{rows, width};
  const Buffer saved = bench.device().memory().allocate(norm.saved(sizes), "saved");
  const Buffer scratch = bench.device().memory().allocate(norm.workspace(sizes), "workspace");
  const Region kept{saved.data(), saved.bytes()}, workspace{scratch.data(), scratch.bytes()};
  const Buffer x = bench.place(numbers(all, 1)), delta = bench.place(numbers(all, 2));
  const Buffer weight = bench.place(numbers(one, 3));
  const Buffer h = bench.place(numbers(all, 0)), y = bench.place(numbers(all, 0));
  const Buffer dy = bench.place(numbers(all, 4)), dh = bench.place(numbers(all, 5));
  const Buffer dweight = bench.place(numbers(one, 6));
  const auto view = [&](const Buffer& buffer) { return buffer.view(DType::f32, matrix); };
  const auto vector = [&](const Buffer& buffer) { return buffer.view(DType::f32, {width}); };
  norm.forward(bench.compute(), {view(x), view(delta), vector(weight), view(h), view(y), 1e-6, kept, workspace});
  // dh is where the gradient from elsewhere comes in, and where the sum goes out.
  norm.backward(bench.compute(), {view(h), vector(weight), view(dy), view(dh), view(dh), vector(dweight), 1e-6, kept,
                                  workspace});
  return {bench.values(view(h)), bench.values(view(y)), bench.values(view(dh)), bench.values(vector(dweight))};
}

void expect_near(const std::vector<float>& found, const std::vector<float>& wanted, const char* what) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (std::abs(found[i] - wanted[i]) <= 1e-5 * (1 + std::abs(wanted[i]))) continue;
    std::fprintf(stderr, "FAILED: %s[%zu] is %g instead of %g\n", what, i, found[i], wanted[i]);
    std::exit(1);
  }
}

int main(int, char** argv) {
  PluginBench bench(argv[1], {"plugins.@NAME@.base_config=threads: 2"});
  const auto host = make_inner<Backend>("backend_host", bench.context());
  const Result mine = run(bench, *bench.operators().add_rms_norm);
  const Result wanted = run(bench, *host->operators().add_rms_norm);
  expect_near(mine.h, wanted.h, "h");
  expect_near(mine.y, wanted.y, "y");
  expect_near(mine.dh, wanted.dh, "dh");
  expect_near(mine.dweight, wanted.dweight, "dweight");
  std::puts("ok");
}
