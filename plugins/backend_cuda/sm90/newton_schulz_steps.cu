#include <algorithm>
#include <limits>

#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/sm90/newton_schulz.cuh"
#include "plugins/backend_cuda/sm90/newton_schulz_steps.h"
#include "runtime/base/error.h"

namespace ananke::cuda::sm90 {
namespace {

constexpr std::int64_t smallest = 384;  // below, tiles are too few and too large for what a triangle saves

std::int64_t pieces(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

std::int64_t tiles_of(std::int64_t s, std::int64_t l) {
  const std::int64_t down = pieces(s, StepConfig::tile_m);
  return 2 * triangle_of(static_cast<int>(down)) + down * pieces(l, StepConfig::tile_n);
}

Matrices stack(void* data, std::int64_t count, std::int64_t rows, std::int64_t columns) {
  return {data, DType::bf16, rows, columns, columns, count, rows * columns};
}

}  // namespace

NewtonSchulzSteps::NewtonSchulzSteps(const DeviceFacts& facts)
    : blocks_(facts.device >= 0 && facts.major == 9 ? facts.multiprocessors : 0) {
  if (blocks_ == 0) return;
  maps_.emplace();
  check(cudaFuncSetAttribute(newton_schulz_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(StepConfig::shared_bytes)),
        "give Newton-Schulz's kernel its shared memory");
}

bool NewtonSchulzSteps::take(std::int64_t s, std::int64_t l) const {
  constexpr std::int64_t longest = 1 << 20;  // tiles are counted in 31 bits
  return blocks_ > 0 && s > 0 && s <= l && l <= longest && s % 8 == 0 && l % 8 == 0;
}

bool NewtonSchulzSteps::faster(std::int64_t s, std::int64_t l) const { return take(s, l) && s >= smallest; }

void NewtonSchulzSteps::run(cudaStream_t stream, const Batch& batch, int steps, double a, double b, double c) const {
  const auto& [count, s, l, x, y, square_a, square_b, progress] = batch;
  ANANKE_CHECK(take(s, l), "Newton-Schulz on matrices [{}, {}] that the kernel does not take", s, l);
  if (count == 0 || steps == 0) return;
  const std::int64_t tiles = count * tiles_of(s, l) * steps;
  ANANKE_CHECK(tiles * 2 + blocks_ < std::numeric_limits<int>::max(),
               "{} steps of Newton-Schulz on {} matrices [{}, {}] at once", steps, count, s, l);
  StepMaps maps;
  const Matrices all[] = {stack(x, count, s, l), stack(y, count, s, l), stack(square_a, count, s, s),
                          stack(square_b, count, s, s)};
  for (int i = 0; i < matrices_of_steps; ++i) {
    maps.tall[i] = maps_->of(all[i], 128);
    maps.low[i] = maps_->of(all[i], 64);
  }
  const auto number = [](auto n) { return static_cast<int>(n); };
  const StepArguments call{
      number(count),         number(s), number(l),   steps, static_cast<float>(a), static_cast<float>(b),
      static_cast<float>(c), progress,  progress + 1};
  check(cudaMemsetAsync(progress, 0, static_cast<std::size_t>(progress_ints(count)) * sizeof(int), stream),
        "clear Newton-Schulz's counters");
  const auto grid = static_cast<unsigned>(std::min<std::int64_t>(blocks_, tiles));
  newton_schulz_kernel<<<grid, StepConfig::threads, StepConfig::shared_bytes, stream>>>(maps, call);
  ANANKE_CUDA_LAUNCHED("newton_schulz: steps for sm_90");
}

}  // namespace ananke::cuda::sm90
