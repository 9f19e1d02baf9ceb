// What is kept comes back, though its place on the device was used in between. Argument: the job file.
#include <cstdio>
#include <cstdlib>

#include "ananke/job.pb.h"
#include "runtime/engine/plugin_bench.h"

using namespace ananke;

int main(int, char** argv) {
  PluginBench bench(argv[1], {"plugins.@NAME@.moved_blocks=3"});
  Activations& activations = *bench.roles().activations;
  const int blocks = static_cast<int>(bench.job().model().num_hidden_layers()) + 2;
  constexpr int microbatches = 2;
  activations.start(bench.device(), blocks, microbatches, 2 * sizeof(float));
  const auto number = [](int block, int microbatch) { return static_cast<float>(10 * block + microbatch); };
  for (int block = 0; block < blocks; ++block) {
    for (int m = 0; m < microbatches; ++m) {
      const Buffer input = bench.place({number(block, m), 0.5f});
      bench.device().copy(bench.compute(), activations.place(block, m), input.data(), input.bytes());
      activations.keep(block, m);
      bench.compute().synchronize();
    }
  }
  for (int block = blocks - 1; block >= 0; --block) {
    for (int m = 0; m < microbatches; ++m) {
      const TensorView back{activations.take(block, m), DType::f32, {2}};
      if (bench.values(back) != std::vector<float>{number(block, m), 0.5f}) {
        std::fprintf(stderr, "FAILED: block %d, microbatch %d came back with other values\n", block, m);
        return 1;
      }
      activations.forget(block, m);
    }
  }
  std::puts("ok");
}
