// Products with SwiGLU and its gradient in them (sm90/fused.cuh), against the product and a kernel of its own for the
// activation in the same run: the same bits, and how fast.
#include <cstring>
#include <memory>

#include "plugins/backend_cuda/operators/device_facts.h"
#include "plugins/backend_cuda/sm90/grouped_configs.cuh"
#include "runtime/base/error.h"
#include "tests/bench/sm90_bench_parts.cuh"

namespace ananke::cuda::sm90 {
namespace {

struct Problem {
  std::string name;
  std::int64_t rows, hidden, width;
  Offsets offsets;
  bool weighted = true;

  std::int64_t groups() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  std::int64_t used() const { return offsets.back(); }
  std::int64_t sums() const { return (width + 255) / 256; }
  double flops(int matrices) const {
    return 2.0 * matrices * static_cast<double>(used()) * static_cast<double>(hidden) * static_cast<double>(width);
  }
};

// What one way of computing writes.
struct Outputs {
  explicit Outputs(const Problem& p)
      : both(4 * p.rows * p.width + guard),
        middle(2 * p.rows * p.width + guard),
        dboth(4 * p.rows * p.width + guard),
        weighted(2 * p.rows * p.width + guard),
        d_row_weights(4 * p.rows),
        sums(4 * p.rows * p.sums() + guard) {}
  static constexpr std::int64_t guard = 4096;
  Memory both, middle, dboth, weighted, d_row_weights, sums;
};

class Run {
 public:
  Run(const Problem& p, int blocks)
      : n(p),
        blocks_(blocks),
        x_(2 * p.rows * p.hidden),
        dy_(2 * p.rows * p.hidden),
        gate_up_(4 * p.groups() * p.width * p.hidden),
        down_(2 * p.groups() * p.width * p.hidden),
        offsets_(4 * p.offsets.size()),
        row_weights_(4 * p.rows),
        counter_(256, 0),
        x{x_.data(), DType::bf16, p.rows, p.hidden, p.hidden},
        dy{dy_.data(), DType::bf16, p.rows, p.hidden, p.hidden},
        gate_up{gate_up_.data(), DType::bf16, 2 * p.width, p.hidden, p.hidden, p.groups(), 2 * p.width * p.hidden},
        down{down_.data(), DType::bf16, p.hidden, p.width, p.width, p.groups(), p.width * p.hidden} {
    offsets_.write(p.offsets);
    fill(x, p.used(), 1);
    fill(dy, p.used(), 2);
    fill(gate_up, gate_up.rows, 3);
    fill(down, down.rows, 4);
    Matrices weights{row_weights_.data(), DType::f32, p.rows, 1, 1};
    fill(weights, p.used(), 5);
    prepare<Forward>();
    prepare<Backward>();
    prepare_fused<ForwardSwiglu>();
    prepare_fused<BackwardSwiglu>();
    check(cudaDeviceSynchronize(), "prepare");
  }

  // The product alone, and the activation alone.
  void multiply(Outputs& to) {
    launch<Forward>(nullptr, maps_, blocks_, x, gate_up, table(to.both, 2 * n.width), call(2 * n.width, n.hidden));
  }
  void activate(Outputs& to) {
    const std::int64_t count = n.rows * n.width / 8;
    swiglu_kernel<8><<<static_cast<unsigned>(blocks_for(count, swiglu_threads)), swiglu_threads>>>(
        count, n.width / 8, used(), static_cast<const bf16*>(to.both.data()), static_cast<bf16*>(to.middle.data()));
    ANANKE_CUDA_LAUNCHED("activation");
  }
  void fused(Outputs& to, int strip_of_tiles = strip) {
    launch_fused<ForwardSwiglu>(nullptr, maps_, blocks_, x, gate_up, call(n.width, n.hidden, strip_of_tiles),
                                {static_cast<bf16*>(to.both.data()), static_cast<bf16*>(to.middle.data())});
  }
  void multiply_backward(Outputs& to) {
    Matrices out = table(to.dboth, n.width);
    out.stride = 2 * n.width;
    launch<Backward>(nullptr, maps_, blocks_, dy, down, out, call(n.width, n.hidden));
  }
  void activate_backward(const Memory& both, Outputs& to) {
    swiglu_backward_kernel<8><<<static_cast<unsigned>(blocks_for(n.rows, swiglu_threads / 32)), swiglu_threads>>>(
        n.rows, n.width / 8, used(), weights(), static_cast<const bf16*>(both.data()),
        static_cast<bf16*>(to.weighted.data()), static_cast<bf16*>(to.dboth.data()),
        static_cast<float*>(to.d_row_weights.data()));
    ANANKE_CUDA_LAUNCHED("gradient of the activation");
  }
  void fused_backward(const Memory& both, Outputs& to, int strip_of_tiles = strip) {
    launch_fused<BackwardSwiglu>(nullptr, maps_, blocks_, dy, down, call(n.width, n.hidden, strip_of_tiles),
                                 {static_cast<const bf16*>(both.data()), weights(), static_cast<bf16*>(to.dboth.data()),
                                  static_cast<bf16*>(to.weighted.data()), static_cast<float*>(to.sums.data())});
  }
  // That a kernel has reported a fault or left the tile counter.
  bool untidy() const {
    const std::vector<int> values = counter_.read<int>();
    return values[0] != 0 || values[1] != 0 || values[16] != 0;
  }

  const Problem n;

 private:
  Matrices table(const Memory& memory, std::int64_t columns) const {
    return {memory.data(), DType::bf16, n.rows, columns, columns};
  }
  const std::int32_t* used() const { return static_cast<const std::int32_t*>(offsets_.data()) + n.groups(); }
  const float* weights() const { return n.weighted ? static_cast<const float*>(row_weights_.data()) : nullptr; }
  Arguments call(std::int64_t columns, std::int64_t k, int strip_of_tiles = strip) const {
    Arguments call{};
    call.offsets = static_cast<const std::int32_t*>(offsets_.data());
    call.groups = static_cast<int>(n.groups());
    call.rows = static_cast<int>(n.rows);
    call.n = static_cast<int>(columns);
    call.k = static_cast<int>(k);
    call.strip = strip_of_tiles;
    call.counter = static_cast<TileCounter*>(counter_.data());
    call.faults = {static_cast<int*>(counter_.data()) + 16,
                   reinterpret_cast<FaultRecord*>(static_cast<std::byte*>(counter_.data()) + 128)};
    return call;
  }

  const TensorMaps maps_;
  const int blocks_;
  Memory x_, dy_, gate_up_, down_, offsets_, row_weights_, counter_;
  const Matrices x, dy, gate_up, down;
};

bool same(const char* what, const Memory& got, const Memory& want) {
  const auto a = got.read<std::uint16_t>(), b = want.read<std::uint16_t>();
  std::int64_t wrong = 0, at = -1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    if (wrong++ == 0) at = static_cast<std::int64_t>(i);
  }
  if (wrong) {
    const auto first = static_cast<std::size_t>(at);
    fmt::print("    {}: {} of {} differ, first [{}]: {:04x} and not {:04x}\n", what, wrong, a.size(), at, a[first],
               b[first]);
  }
  return wrong == 0;
}

// The numbers of a row that its weight's gradient was left in give what the kernel of its own gives in one sum.
bool sums_right(const Problem& p, const Outputs& got, const Outputs& want) {
  const auto sums = got.sums.read<float>(), all = want.d_row_weights.read<float>();
  double largest = 1e-3, worst = 0;
  for (std::int64_t row = 0; row < p.used(); ++row) {
    largest = std::max(largest, std::abs(static_cast<double>(all[static_cast<std::size_t>(row)])));
  }
  bool touched = false;
  for (std::size_t row = 0; row < all.size(); ++row) {
    double sum = 0;
    for (std::int64_t i = 0; i < p.sums(); ++i) {
      const auto at = row * static_cast<std::size_t>(p.sums()) + static_cast<std::size_t>(i);
      if (static_cast<std::int64_t>(row) >= p.used()) touched = touched || !std::isnan(sums[at]);
      sum += static_cast<double>(sums[at]);
    }
    if (static_cast<std::int64_t>(row) >= p.used()) continue;
    const double error = std::abs(sum - static_cast<double>(all[row]));
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  for (std::size_t i = all.size() * static_cast<std::size_t>(p.sums()); i < sums.size(); ++i) {
    touched = touched || !std::isnan(sums[i]);
  }
  if (touched) fmt::print("    sums: written behind the last group\n");
  if (!(worst <= 1e-5 * largest)) fmt::print("    sums: off by {:.2e} of {:.2e}\n", worst, largest);
  return !touched && worst <= 1e-5 * largest;
}

bool check_problem(const Problem& p) {
  const int blocks = DeviceFacts::of(0).multiprocessors;
  Run run(p, blocks), few(p, 7);
  Outputs want(p);
  run.multiply(want);
  run.activate(want);
  run.multiply_backward(want);
  run.activate_backward(want.both, want);
  check(cudaDeviceSynchronize(), "run the kernels");
  bool right = true;
  for (const int turn : {0, 1, 2}) {  // the same bits in any order of tiles
    Run& by = turn == 2 ? few : run;
    Outputs got(p);
    by.fused(got, turn == 0 ? strip : turn);
    by.fused_backward(want.both, got, turn == 0 ? strip : turn);
    check(cudaDeviceSynchronize(), "run the kernels");
    right = same("both", got.both, want.both) && right;
    right = same("middle", got.middle, want.middle) && right;
    right = same("dboth", got.dboth, want.dboth) && right;
    right = same("weighted middle", got.weighted, want.weighted) && right;
    right = sums_right(p, got, want) && right;
    if (by.untidy()) fmt::print("    FAULT, or a counter left\n");
    right = right && !by.untidy();
  }
  fmt::print("  swiglu {:<10} rows {} hidden {} width {} groups {}{}: {}\n", p.name, p.rows, p.hidden, p.width,
             p.groups(), p.weighted ? "" : " unweighted", right ? "right" : "WRONG");
  std::fflush(nullptr);
  return right;
}

std::vector<Problem> cases() {
  const Offsets ragged{0, 0, 1, 64, 64, 191, 320, 449, 449, 600}, tails{0, 63, 127, 192, 321, 321, 450};
  std::vector<Problem> all{{"one tile", 128, 64, 256, {0, 128}},
                           {"one row", 128, 8, 8, {0, 1}},
                           {"small", 130, 72, 64, {0, 1, 130}, false},
                           {"ragged", 640, 200, 264, ragged},
                           {"tails", 450, 136, 520, tails},
                           {"last", 350, 72, 136, {0, 0, 0, 333}},
                           {"first", 350, 72, 128, {0, 333, 333, 333}},
                           {"middle", 350, 72, 200, {0, 0, 333, 333}},
                           {"none", 350, 72, 128, {0, 0, 0, 0}},
                           {"large", 4200, 2048, 1792, {0, 1000, 1001, 3001, 4096}},
                           {"unweighted", 4200, 512, 768, {0, 1000, 1001, 3001, 4096}, false}};
  Offsets many{0};  // more groups than a warp has lanes
  std::mt19937 engine(5);
  for (int g = 0; g < 200; ++g) many.push_back(many.back() + static_cast<int>(engine() % 23));
  all.push_back({"many", 23 * 200, 72, 96, many});
  return all;
}

// Numbers of 32 bits that differ.
__global__ void different_kernel(std::int64_t n, const unsigned* a, const unsigned* b, unsigned long long* count) {
  unsigned long long mine = 0;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    mine += a[i] != b[i];
  }
  if (mine) atomicAdd(count, mine);
}
unsigned long long different(const Memory& a, const Memory& b, std::int64_t numbers) {
  Memory count(8, 0);
  different_kernel<<<2048, 256>>>(numbers, static_cast<const unsigned*>(a.data()),
                                  static_cast<const unsigned*>(b.data()),
                                  static_cast<unsigned long long*>(count.data()));
  check(cudaGetLastError(), "compare");
  return count.read<unsigned long long>()[0];
}

void time_problem(const Problem& p) {
  Run run(p, DeviceFacts::of(0).multiprocessors);
  Clock clock;
  auto want = std::make_unique<Outputs>(p), got = std::make_unique<Outputs>(p);
  const auto line = [&](const char* what, double us, int matrices, double pair, const std::string& more = {}) {
    fmt::print("{:<4} {:<34} {:>9.1f} us {:>7.1f} TFLOP/s {:>6.3f} of the pair's speed {}\n", p.name, what, us,
               p.flops(matrices) / us * 1e-6, pair / us, more);
    std::fflush(nullptr);
  };
  const double product = clock.median(nullptr, [&] { run.multiply(*want); });
  const double pair = clock.median(nullptr, [&] {
    run.multiply(*want);
    run.activate(*want);
  });
  const double fused = clock.median(nullptr, [&] { run.fused(*got); });
  const std::int64_t numbers = p.rows * p.width;  // of `both`, 32 bits each
  line("gate+up", product, 2, pair);
  line("gate+up, then SwiGLU", pair, 2, pair);
  line("gate+up with SwiGLU", fused, 2, pair,
       fmt::format("{} and {} differ", different(got->both, want->both, numbers),
                   different(got->middle, want->middle, numbers / 2)));
  const double back = clock.median(nullptr, [&] { run.multiply_backward(*want); });
  const double back_pair = clock.median(nullptr, [&] {
    run.multiply_backward(*want);
    run.activate_backward(want->both, *want);
  });
  const double back_fused = clock.median(nullptr, [&] { run.fused_backward(want->both, *got); });
  line("down dgrad", back, 1, back_pair);
  line("down dgrad, then dSwiGLU", back_pair, 1, back_pair);
  line("down dgrad with dSwiGLU", back_fused, 1, back_pair,
       fmt::format("{} and {} differ", different(got->dboth, want->dboth, numbers),
                   different(got->weighted, want->weighted, numbers / 2)));
}

}  // namespace

int check_swiglu(const std::string& part) {
  const bool right = apart([&] {
    bool all = true;
    for (const Problem& p : cases()) {
      if (p.name.find(part) != std::string::npos) all = check_problem(p) && all;
    }
    return all;
  });
  fmt::print("swiglu: {}\n", right ? "all right" : "THERE IS SOMETHING WRONG");
  return right ? 0 : 1;
}

int time_swiglu(const std::string& part) {
  for (const Problem& p :
       {Problem{"m5", 0, 2048, 768, natural(64, 2048)}, Problem{"w2", 0, 6144, 1792, natural(96, 2048)}}) {
    if (p.name.find(part) == std::string::npos) continue;
    Problem shape = p;
    shape.rows = p.used();
    time_problem(shape);
  }
  return 0;
}

}  // namespace ananke::cuda::sm90
