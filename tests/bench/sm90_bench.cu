// Kernels for compute capability 9.0 alone, in variants: right against a plain kernel, and how fast.
//
//   sm90_bench check [variant [part of a case's name]]     small ragged shapes; every case in a process of its own
//   sm90_bench time [variant [part of a shape's name]]     experts' shapes, against cuBLASLt in the same run
//   sm90_bench newton [part of a shape's name]             five steps of Newton-Schulz, likewise
//
// `variant`: 3x4 (what the product uses), another tile (variants() below), or all of them; or swiglu: products with the
// activation in them, against the product and a kernel of its own.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "plugins/backend_cuda/cuda_device.h"
#include "plugins/backend_cuda/environment.h"
#include "plugins/backend_cuda/operators/products.h"
#include "plugins/backend_cuda/operators/side_streams.h"
#include "plugins/backend_cuda/sm90/launch.cuh"
#include "plugins/backend_cuda/sm90/newton_schulz_steps.h"
#include "runtime/base/error.h"
#include "tests/bench/sm90_bench_parts.cuh"

namespace ananke::cuda::sm90 {
namespace {

using bf16 = __nv_bfloat16;

enum Kind { forward, backward, gradient, dense_f32, kinds };
constexpr const char* kind_names[] = {"forward", "backward", "gradient", "dense f32"};

struct Variant {
  std::string name;
  std::array<void (*)(), kinds> prepare;
  std::array<void (*)(cudaStream_t, const TensorMaps&, int, const Matrices&, const Matrices&, const Matrices&,
                      Arguments),
             kinds>
      launch;
};

template <int tile_n, int stages, int bf16_slabs, int f32_slabs>
Variant variant(const char* name) {
  using F = Config<Ragged::m, Major::k, Major::k, bf16, tile_n, stages, bf16_slabs>;
  using B = Config<Ragged::m, Major::k, Major::mn, bf16, tile_n, stages, bf16_slabs>;
  using G = Config<Ragged::k, Major::mn, Major::mn, float, tile_n, stages, f32_slabs>;
  using D = Config<Ragged::m, Major::k, Major::k, float, tile_n, stages, f32_slabs>;
  return {name, {prepare<F>, prepare<B>, prepare<G>, prepare<D>}, {launch<F>, launch<B>, launch<G>, launch<D>}};
}

std::vector<Variant> variants() {
  return {variant<256, 3, 4, 4>("3x4"), variant<256, 4, 2, 2>("4x2"), variant<128, 5, 2, 4>("128")};
}

struct Plain {
  Kind kind;
  Matrices a, b, out;  // out: f32, with the strides of the one to be compared
  const std::int32_t* offsets;
  int groups;
  bool add;
};
__device__ float at(const Matrices& m, std::int64_t matrix, std::int64_t row, std::int64_t column) {
  return __bfloat162float(static_cast<const bf16*>(m.data)[matrix * m.matrix_stride + row * m.stride + column]);
}
// A thread per element.
__global__ void plain_kernel(Plain p) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x,
                     row = blockIdx.y * 8 + threadIdx.y, group_of_out = blockIdx.z;
  if (row >= p.out.rows || column >= p.out.columns) return;
  float sum = 0;
  auto* out = static_cast<float*>(p.out.data) + group_of_out * p.out.matrix_stride + row * p.out.stride + column;
  if (p.kind == gradient) {
    const int begin = p.offsets[group_of_out], end = p.offsets[group_of_out + 1];
    for (int r = begin; r < end; ++r) sum = fmaf(at(p.a, 0, r, row), at(p.b, 0, r, column), sum);
    *out = p.add ? *out + sum : sum;
    return;
  }
  int group = 0;
  while (group < p.groups && row >= p.offsets[group + 1]) ++group;
  if (group == p.groups) return;
  for (int k = 0; k < p.a.columns; ++k) {
    sum = fmaf(at(p.a, 0, row, k), p.kind == backward ? at(p.b, group, k, column) : at(p.b, group, column, k), sum);
  }
  *out = sum;
}

// A product of one kind: its tensors, the call, and what cuBLASLt is to do.
struct Problem {
  Kind kind;
  std::int64_t rows, n, k;  // gradient: k is the number of columns of a
  Offsets offsets;
  bool add = false;
  std::int64_t pad = 0;  // elements behind every row and every matrix

  std::int64_t groups() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  std::int64_t used() const { return offsets.back(); }
  double flops() const { return 2.0 * static_cast<double>(used()) * static_cast<double>(n) * static_cast<double>(k); }
  static Matrices table(std::int64_t rows, std::int64_t columns, std::int64_t pad, DType dtype) {
    return {nullptr, dtype, rows, columns, columns + pad, 1, rows * (columns + pad)};
  }
  static Matrices stack(std::int64_t count, std::int64_t rows, std::int64_t columns, std::int64_t pad, DType dtype) {
    return {nullptr, dtype, rows, columns, columns + pad, count, rows * (columns + pad) + pad};
  }
  Matrices a() const { return table(rows, k, pad, DType::bf16); }
  Matrices b() const {
    if (kind == gradient) return table(rows, n, pad, DType::bf16);
    return kind == backward ? stack(groups(), k, n, pad, DType::bf16) : stack(groups(), n, k, pad, DType::bf16);
  }
  Matrices out() const {
    if (kind == gradient) return stack(groups(), k, n, pad, DType::f32);
    return table(rows, n, pad, kind == dense_f32 ? DType::f32 : DType::bf16);
  }
};

std::size_t elements_of(const Matrices& m) { return static_cast<std::size_t>(m.count * m.matrix_stride); }

class Tensors {
 public:
  explicit Tensors(const Problem& p)
      : problem(p), offsets(p.offsets.size() * 4), counter(256, 0), a(make(p.a())), b(make(p.b())), out(make(p.out())) {
    offsets.write(p.offsets);
    fill(a, p.used(), 1);
    fill(b, p.kind == gradient ? p.used() : b.rows, 2);
    reset();
  }
  void reset() {
    check(cudaMemset(out.data, 0xff, elements_of(out) * size_of(out.dtype)), "fill memory");
    if (problem.add) fill(out, out.rows, 3);
  }
  Arguments arguments(int strip) {
    Arguments call{};
    call.offsets = static_cast<const std::int32_t*>(offsets.data());
    call.groups = static_cast<int>(problem.groups());
    call.rows = static_cast<int>(problem.rows);
    call.m = problem.kind == gradient ? static_cast<int>(problem.k) : 0;
    call.n = static_cast<int>(problem.n);
    call.k = problem.kind == gradient ? 0 : static_cast<int>(problem.k);
    call.add = problem.add;
    call.strip = strip;
    call.counter = static_cast<TileCounter*>(counter.data());
    call.faults = {static_cast<int*>(counter.data()) + 16,
                   reinterpret_cast<FaultRecord*>(static_cast<std::byte*>(counter.data()) + 128)};
    return call;
  }
  int fault() const { return counter.read<int>()[16]; }

  const Problem problem;
  Memory offsets, counter;
  std::vector<std::unique_ptr<Memory>> memory;
  Matrices a, b, out;

 private:
  Matrices make(Matrices m) {
    memory.push_back(std::make_unique<Memory>(elements_of(m) * size_of(m.dtype)));
    m.data = memory.back()->data();
    return m;
  }
};

float value_of(const std::vector<std::uint16_t>& halves, std::size_t i) {
  const std::uint32_t bits = static_cast<std::uint32_t>(halves[i]) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
float value_of(const std::vector<float>& values, std::size_t i) { return values[i]; }

// Compares with what the plain kernel gives; what it has not written must be as it was. False where they differ.
template <class T>
bool compare(const Problem& p, const Matrices& shape, const std::vector<T>& got, const std::vector<float>& want) {
  double largest = 0, worst = 0;
  for (const float v : want) largest = std::isfinite(v) ? std::max(largest, std::abs(static_cast<double>(v))) : largest;
  const double tolerance = sizeof(T) == 2 ? largest / 200 : largest / 50000;
  std::int64_t wrong = 0, touched = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const float x = value_of(got, i), y = want[i];
    const bool blank = std::isnan(y);
    if (blank && std::isnan(x)) continue;
    const double error = blank ? INFINITY : std::abs(static_cast<double>(x) - static_cast<double>(y));
    touched += blank;
    if (!(error <= tolerance)) {
      if (wrong++ < 6) {
        const auto matrix = static_cast<std::int64_t>(i) / shape.matrix_stride,
                   rest = static_cast<std::int64_t>(i) % shape.matrix_stride;
        fmt::print("    matrix {} row {} column {}: {} and not {}\n", matrix, rest / shape.stride, rest % shape.stride,
                   x, y);
      }
    } else if (!blank) {
      worst = std::max(worst, error);
    }
  }
  fmt::print("  {:<9} rows {} n {} k {} groups {}{}{}: {}, error {:.2e} of {:.2e}", kind_names[p.kind], p.rows, p.n,
             p.k, p.groups(), p.add ? " added" : "", p.pad ? " padded" : "", wrong ? "WRONG" : "right", worst, largest);
  if (wrong) fmt::print(", {} of {} wrong, {} outside", wrong, want.size(), touched);
  return wrong == 0;
}

bool check_problem(const Variant& v, const Problem& p, const TensorMaps& maps, int blocks) {
  Tensors t(p);
  Memory plain(elements_of(t.out) * 4);
  Matrices plain_out = t.out;
  plain_out.data = plain.data();
  plain_out.dtype = DType::f32;
  if (p.add) fill(plain_out, plain_out.rows, 3);
  const dim3 grid(static_cast<unsigned>((p.n + 31) / 32), static_cast<unsigned>((t.out.rows + 7) / 8),
                  static_cast<unsigned>(t.out.count));
  plain_kernel<<<grid, dim3(32, 8)>>>({p.kind, t.a, t.b, plain_out, static_cast<const std::int32_t*>(t.offsets.data()),
                                       static_cast<int>(p.groups()), p.add});
  check(cudaGetLastError(), "launch the plain kernel");
  v.prepare[p.kind]();
  bool right = true;
  std::vector<std::uint16_t> first;
  for (const int strip : {16, 1, 3}) {  // the same bits in any order of tiles
    t.reset();
    check(cudaDeviceSynchronize(), "prepare");
    v.launch[p.kind](nullptr, maps, strip == 3 ? 7 : blocks, t.a, t.b, t.out, t.arguments(strip));
    check(cudaDeviceSynchronize(), "run the kernel");
    const Memory& out = *t.memory.back();
    const auto bits = out.read<std::uint16_t>();
    if (first.empty()) {
      first = bits;
      right = t.out.dtype == DType::bf16 ? compare(p, t.out, bits, plain.read<float>())
                                         : compare(p, t.out, out.read<float>(), plain.read<float>());
    }
    const std::vector<int> counter = t.counter.read<int>();
    if (bits != first) fmt::print(", DIFFERS with strips of {}", strip);
    if (counter[0] != 0 || counter[1] != 0) fmt::print(", COUNTER left at {} {}", counter[0], counter[1]);
    if (t.fault() != 0) fmt::print(", FAULT");
    right = right && bits == first && counter[0] == 0 && counter[1] == 0 && t.fault() == 0;
  }
  fmt::print("\n");
  return right;
}

std::vector<std::pair<std::string, Problem>> cases() {
  const Offsets one{0, 128}, ragged{0, 0, 1, 64, 64, 191, 320, 449, 449, 600}, tails{0, 63, 127, 192, 321, 321, 450};
  const Offsets last{0, 0, 0, 333}, first{0, 333, 333, 333}, none{0, 0, 0, 0}, large{0, 1000, 1001, 3001, 4096};
  std::vector<std::pair<std::string, Problem>> all;
  const auto add = [&](const std::string& name, Kind kind, std::int64_t rows, std::int64_t n, std::int64_t k,
                       const Offsets& offsets, bool added = false, std::int64_t pad = 0) {
    all.emplace_back(fmt::format("{} {}", kind_names[kind], name), Problem{kind, rows, n, k, offsets, added, pad});
  };
  for (const Kind kind : {forward, backward, gradient, dense_f32}) {
    add("one tile", kind, 128, 256, kind == gradient ? 128 : 64, one);
    add("one tile long", kind, 128, 256, 512, one);
    add("small", kind, 128, 8, 8, one);
    add("small", kind, 128, 64, 64, {0, 1});
    add("ragged", kind, 640, 520, 200, ragged, false, 8);
    add("tails", kind, 450, 264, 136, tails);
    add("last", kind, 350, 128, 72, last, false, 16);
    add("first", kind, 350, 128, 72, first);
    add("none", kind, 350, 128, 72, none);
    add("large", kind, 4200, 1792, 2048, large);
    if (kind != gradient) continue;
    add("ragged added", kind, 640, 520, 200, ragged, true, 8);
    add("none added", kind, 350, 128, 72, none, true);
    add("large added", kind, 4200, 1792, 2048, large, true);
  }
  Offsets many{0};  // more groups than a warp has lanes
  std::mt19937 engine(5);
  for (int g = 0; g < 200; ++g) many.push_back(many.back() + static_cast<int>(engine() % 23));
  for (const Kind kind : {forward, backward, gradient}) add("many", kind, 23 * 200, 96, 72, many);
  return all;
}

// Offsets that are none are reported, nothing is written.
bool check_refusals(const Variant& v, const TensorMaps& maps, int blocks) {
  bool right = true;
  for (const Offsets& offsets : {Offsets{1, 4, 5}, Offsets{0, 70, 64}, Offsets{0, 4, 200}}) {
    Tensors t({forward, 128, 64, 64, {0, 64, 128}});
    t.offsets.write(offsets);
    v.prepare[forward]();
    v.launch[forward](nullptr, maps, blocks, t.a, t.b, t.out, t.arguments(16));
    check(cudaDeviceSynchronize(), "run the kernel");
    const auto bits = t.memory.back()->read<std::uint16_t>();
    const bool refused = t.fault() == 1 && std::ranges::all_of(bits, [](std::uint16_t b) { return b == 0xffff; });
    fmt::print("  offsets {} {} {}: {}\n", offsets[0], offsets[1], offsets[2], refused ? "refused" : "NOT REFUSED");
    right = right && refused;
  }
  return right;
}

int check_all(const std::string& wanted, const std::string& part) {
  int failed = 0;
  for (const Variant& v : variants()) {
    if (wanted != "all" && wanted != v.name) continue;
    // Cases of a kind share a process until one fails.
    std::vector<std::pair<std::string, Problem>> all = cases();
    std::erase_if(all, [&](const auto& c) { return c.first.find(part) == std::string::npos; });
    fmt::print("variant {}\n", v.name);
    std::size_t next = 0;
    std::array<int, kinds> died{};
    while (next < all.size()) {
      const Kind kind = all[next].second.kind;
      if (died[kind] == 2) {  // each may have waited for a kernel that hangs
        fmt::print("  {}: not tried\n", all[next++].first);
        continue;
      }
      int ends[2];
      if (pipe(ends) != 0) return 1;
      const bool right = apart([&] {
        const DeviceFacts facts = DeviceFacts::of(0);
        const TensorMaps maps;
        bool good = true;
        for (std::size_t i = next; i < all.size() && all[i].second.kind == kind; ++i) {
          const char begun = 1;
          if (write(ends[1], &begun, 1) != 1) return false;
          good = check_problem(v, all[i].second, maps, facts.multiprocessors) && good;
          std::fflush(nullptr);
        }
        return good;
      });
      close(ends[1]);
      std::size_t done = 0;
      for (char begun; read(ends[0], &begun, 1) == 1;) ++done;
      close(ends[0]);
      failed += right ? 0 : 1;
      next += std::max<std::size_t>(done, 1);
      died[kind] += right ? 0 : 1;
    }
    failed += apart([&] { return check_refusals(v, TensorMaps(), DeviceFacts::of(0).multiprocessors); }) ? 0 : 1;
  }
  fmt::print("{}\n", failed ? "THERE IS SOMETHING WRONG" : "all right");
  std::fflush(nullptr);
  return failed ? 1 : 0;
}

// --- time ------------------------------------------------------------------------------------------------------------

__global__ void difference_kernel(std::int64_t n, const void* a, const void* b, bool halves, unsigned* largest) {
  float difference = 0, size = 0;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    const float x = halves ? __bfloat162float(static_cast<const bf16*>(a)[i]) : static_cast<const float*>(a)[i];
    const float y = halves ? __bfloat162float(static_cast<const bf16*>(b)[i]) : static_cast<const float*>(b)[i];
    difference = isnan(x) || isnan(y) ? INFINITY : fmaxf(difference, fabsf(x - y));
    size = fmaxf(size, fabsf(y));
  }
  atomicMax(largest, __float_as_uint(difference));  // of numbers that are not negative: the same order
  atomicMax(largest + 1, __float_as_uint(size));
}

class Library {
 public:
  Library() : device_({0, "bench"}), products_(device_.facts(), device_.memory()), sides_(device_.facts()) {}
  cudaStream_t stream() { return raw(device_.stream(Resource::compute)); }
  int blocks() const { return device_.facts().multiprocessors; }
  const DeviceFacts& facts() const { return device_.facts(); }
  Products& products() { return products_; }
  // Group by group on streams side by side, as the operator without these kernels does it.
  void run(const Tensors& t) {
    const Problem& p = t.problem;
    const std::lock_guard lock(sides_.lock);
    sides_.begin(stream());
    for (std::int64_t g = 0, turn = 0; g < p.groups(); ++g) {
      const std::int64_t begin = p.offsets[static_cast<std::size_t>(g)],
                         rows = p.offsets[static_cast<std::size_t>(g) + 1] - begin;
      if (rows == 0) continue;
      const auto row = [&](const Matrices& m) {
        return static_cast<std::byte*>(m.data) + begin * m.stride * static_cast<std::int64_t>(size_of(m.dtype));
      };
      const auto matrix = [&](const Matrices& m) {
        return static_cast<std::byte*>(m.data) + g * m.matrix_stride * static_cast<std::int64_t>(size_of(m.dtype));
      };
      Product call{};
      const bool wgrad = p.kind == gradient;
      call.m = wgrad ? p.k : rows;
      call.n = p.n;
      call.k = wgrad ? rows : p.k;
      call.a = {row(t.a), t.a.stride, wgrad};
      call.b = {wgrad ? row(t.b) : matrix(t.b), t.b.stride, p.kind == forward || p.kind == dense_f32};
      call.in = DType::bf16;
      call.out = wgrad ? matrix(t.out) : row(t.out);
      call.out_stride = t.out.stride;
      call.out_type = t.out.dtype;
      call.beta = p.add ? 1 : 0;
      call.ragged = p.groups() == 1 ? Product::Ragged::none : wgrad ? Product::Ragged::k : Product::Ragged::m;
      products_.run(sides_.at(stream(), turn++), call);
    }
    sides_.end(stream());
  }

 private:
  CudaDevice device_;
  Products products_;
  SideStreams sides_;
};

std::vector<std::pair<std::string, Problem>> shapes() {
  const Offsets w2 = natural(96, 5461), m5 = natural(64, 2048), all{0, 8192};
  std::vector<std::pair<std::string, Problem>> list;
  const auto add = [&](const std::string& name, Kind kind, const Offsets& offsets, std::int64_t k, std::int64_t n) {
    list.emplace_back(name, Problem{kind, offsets.back(), n, k, offsets, kind == gradient && offsets.size() > 2});
  };
  add("dense 8192 NT", forward, all, 8192, 8192);
  add("dense 8192 NT f32", dense_f32, all, 8192, 8192);
  add("dense 8192 NN", backward, all, 8192, 8192);
  add("dense 8192 TN f32", gradient, all, 8192, 8192);
  for (const auto& [name, offsets, hidden, width] :
       {std::tuple("m5", m5, 2048, 768), std::tuple("w2", w2, 6144, 1792)}) {
    add(fmt::format("{} gate+up", name), forward, offsets, hidden, 2 * width);
    add(fmt::format("{} down", name), forward, offsets, width, hidden);
    add(fmt::format("{} down dgrad", name), backward, offsets, hidden, width);
    add(fmt::format("{} gate+up dgrad", name), backward, offsets, 2 * width, hidden);
    add(fmt::format("{} gate+up wgrad", name), gradient, offsets, 2 * width, hidden);
    add(fmt::format("{} down wgrad", name), gradient, offsets, hidden, width);
  }
  return list;
}

std::string compared(Tensors& t, const Memory& theirs) {
  Memory largest(8, 0);
  const std::int64_t n = static_cast<std::int64_t>(elements_of(t.out));
  difference_kernel<<<2048, 256>>>(n, t.out.data, theirs.data(), t.out.dtype == DType::bf16,
                                   static_cast<unsigned*>(largest.data()));
  check(cudaGetLastError(), "compare");
  const std::vector<float> found = largest.read<float>();
  return fmt::format("{:.1e} of {:.1e}", found[0], found[1]);
}

int time_all(const std::string& wanted, const std::string& part) {
  Library library;
  const TensorMaps maps;
  Clock clock;
  const cudaStream_t stream = library.stream();
  std::vector<Variant> chosen = variants();
  std::erase_if(chosen, [&](const Variant& v) { return wanted != "all" && wanted != v.name; });
  for (const Variant& v : chosen) {
    for (const auto& prepare : v.prepare) prepare();
  }
  for (const auto& [name, problem] : shapes()) {
    if (name.find(part) == std::string::npos) continue;
    Tensors t(problem);
    check(cudaDeviceSynchronize(), "prepare");
    const auto line = [&](const std::string& who, double us, double to, const std::string& more) {
      fmt::print("{:<20} {:<14} {:>9.1f} us {:>7.1f} TFLOP/s {:>6.3f} of cuBLASLt {}\n", name, who, us,
                 problem.flops() / us * 1e-6, to / us, more);
      std::fflush(nullptr);
    };
    const double theirs_us = clock.median(stream, [&] { library.run(t); });
    line("cuBLASLt", theirs_us, theirs_us, "");
    t.reset();
    check(cudaDeviceSynchronize(), "prepare");  // the streams of the products do not wait for others
    library.run(t);
    check(cudaDeviceSynchronize(), "run");
    const std::size_t bytes = elements_of(t.out) * size_of(t.out.dtype);
    Memory theirs(bytes);
    check(cudaMemcpy(theirs.data(), t.out.data, bytes, cudaMemcpyDeviceToDevice), "keep");
    for (const Variant& v : chosen) {
      for (const int strip : {16, 8, 4, 32}) {
        if (strip != 16 && &v != &chosen.front()) continue;
        const auto run = [&] {
          v.launch[problem.kind](stream, maps, library.blocks(), t.a, t.b, t.out, t.arguments(strip));
        };
        t.reset();
        check(cudaDeviceSynchronize(), "prepare");
        run();
        check(cudaDeviceSynchronize(), "run a kernel");
        const std::string more = compared(t, theirs);
        line(fmt::format("{} strip {}", v.name, strip), clock.median(stream, run), theirs_us, more);
      }
    }
  }
  return 0;
}

// --- Newton-Schulz -----------------------------------------------------------------------------------------------

constexpr int steps = 5;
constexpr float step_a = 3.4445f, step_b = -4.775f, step_c = 2.0315f;

struct Batch {
  std::string name;
  std::int64_t count, s, l;
  double flops() const {
    const auto short_side = static_cast<double>(s), long_side = static_cast<double>(l);
    return steps * static_cast<double>(count) * 2 * short_side * short_side * (2 * long_side + short_side);
  }
};

__global__ void scale_kernel(std::int64_t n, bf16* x, float scale) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    x[i] = __float2bfloat16_rn(__bfloat162float(x[i]) * scale);
  }
}
// Elements that differ from the mirrored one.
__global__ void asymmetric_kernel(std::int64_t s, const std::uint16_t* matrices, unsigned* found) {
  const std::int64_t row = blockIdx.x, base = blockIdx.y * s * s;
  for (std::int64_t column = threadIdx.x; column < row; column += blockDim.x) {
    if (matrices[base + row * s + column] != matrices[base + column * s + row]) atomicAdd(found, 1u);
  }
}

// A batch, random numbers with a norm of 1 each, and what the steps need.
class Iterated {
 public:
  explicit Iterated(const Batch& n)
      : batch(n),
        first_(bytes()),
        x_(bytes()),
        y_(bytes()),
        a_(static_cast<std::size_t>(n.count * n.s * n.s) * 2),
        b_(static_cast<std::size_t>(n.count * n.s * n.s) * 2),
        progress_(static_cast<std::size_t>(NewtonSchulzSteps::progress_ints(n.count)) * 4) {
    const Matrices all{first_.data(), DType::bf16, n.s, n.l, n.l, n.count, n.s * n.l};
    fill(all, n.s, 1);
    const float norm = 0.2887f * std::sqrt(static_cast<float>(n.s) * static_cast<float>(n.l));
    scale_kernel<<<2048, 256>>>(n.count * n.s * n.l, static_cast<bf16*>(first_.data()), 1 / norm);
    check(cudaGetLastError(), "fill a matrix");
    reset();
  }
  void reset() {
    check(cudaMemcpy(x_.data(), first_.data(), bytes(), cudaMemcpyDeviceToDevice), "fill memory");
    check(cudaDeviceSynchronize(), "fill memory");  // streams of the device do not wait for copies
  }
  std::size_t bytes() const { return static_cast<std::size_t>(batch.count * batch.s * batch.l) * 2; }
  void run(const NewtonSchulzSteps& own, cudaStream_t stream) {
    own.run(stream,
            {batch.count, batch.s, batch.l, x_.data(), y_.data(), a_.data(), b_.data(),
             static_cast<int*>(progress_.data())},
            steps, step_a, step_b, step_c);
  }
  void run(Products& library, cudaStream_t stream) {
    void *x = x_.data(), *y = y_.data();
    const std::int64_t s = batch.s, l = batch.l;
    const auto multiply = [&](std::int64_t n, std::int64_t k, const Factor& a, const Factor& b, float alpha, float beta,
                              const void* add, void* out) {
      library.run(stream, {.m = s,
                           .n = n,
                           .k = k,
                           .a = a,
                           .b = b,
                           .in = DType::bf16,
                           .out = out,
                           .out_stride = n,
                           .out_type = DType::bf16,
                           .alpha = alpha,
                           .beta = beta,
                           .add = add,
                           .count = batch.count,
                           .tuned_count = batch.count,
                           .out_batch_stride = s * n});
    };
    for (int i = 0; i < steps; ++i) {
      const Factor square_a{a_.data(), s, false, s * s}, square_b{b_.data(), s, false, s * s};
      multiply(s, l, {x, l, false, s * l}, {x, l, true, s * l}, 1, 0, nullptr, a_.data());
      multiply(s, s, square_a, square_a, step_c, step_b, a_.data(), b_.data());
      multiply(l, s, square_b, {x, l, false, s * l}, 1, step_a, x, y);
      std::swap(x, y);
    }
  }
  const void* result() const { return steps % 2 == 0 ? x_.data() : y_.data(); }
  unsigned asymmetric() const {
    const Memory found(4, 0);
    for (const Memory* m : {&a_, &b_}) {
      asymmetric_kernel<<<dim3(static_cast<unsigned>(batch.s), static_cast<unsigned>(batch.count)), 256>>>(
          batch.s, static_cast<const std::uint16_t*>(m->data()), static_cast<unsigned*>(found.data()));
      check(cudaGetLastError(), "compare");
    }
    return found.read<unsigned>()[0];
  }

  const Batch batch;

 private:
  Memory first_, x_, y_, a_, b_, progress_;
};

// The largest difference of two results, and the largest number.
std::pair<float, float> differences(std::size_t bytes, const void* a, const void* b) {
  const Memory largest(8, 0);
  difference_kernel<<<2048, 256>>>(static_cast<std::int64_t>(bytes / 2), a, b, true,
                                   static_cast<unsigned*>(largest.data()));
  check(cudaGetLastError(), "compare");
  const std::vector<float> found = largest.read<float>();
  return {found[0], found[1]};
}

int time_newton(const std::string& part) {
  Library library;
  const NewtonSchulzSteps own(library.facts());
  Clock clock;
  const cudaStream_t stream = library.stream();
  bool right = true;
  for (const Batch& batch : {Batch{"ragged", 3, 264, 520},
                             {"one tile", 2, 128, 256},
                             {"tiny", 5, 8, 8},
                             {"8 x 1792x6144", 8, 1792, 6144},
                             {"w2 experts", 12, 1792, 6144},
                             {"one expert of w2", 1, 1792, 6144},
                             {"w2 query", 2, 6144, 8192},
                             {"w2 key", 4, 1024, 6144},
                             {"m5 experts", 64, 768, 2048},
                             {"m5 query", 16, 2048, 2048},
                             {"m5 key", 16, 512, 2048},
                             {"384", 64, 384, 768}}) {
    if (batch.name.find(part) == std::string::npos) continue;
    Iterated it(batch);
    const auto result_of = [&](auto&& who, Memory& kept) {
      it.reset();
      it.run(who, stream);
      check(cudaDeviceSynchronize(), "run");
      check(cudaMemcpy(kept.data(), it.result(), it.bytes(), cudaMemcpyDeviceToDevice), "keep");
    };
    Memory theirs(it.bytes()), ours(it.bytes()), again(it.bytes());
    result_of(library.products(), theirs);
    result_of(own, ours);
    const unsigned asymmetric = it.asymmetric();
    result_of(own, again);
    const auto [difference, largest] = differences(it.bytes(), ours.data(), theirs.data());
    const bool same = ours.read<std::uint16_t>() == again.read<std::uint16_t>();
    const bool good = difference < largest / 20 && asymmetric == 0 && same;
    right = right && good;
    double theirs_us = INFINITY, ours_us = INFINITY;
    for (int turn = 0; turn < 2; ++turn) {  // in turns: the device is slower when it is warm
      theirs_us = std::min(theirs_us, clock.median(stream, [&] { it.run(library.products(), stream); }));
      ours_us = std::min(ours_us, clock.median(stream, [&] { it.run(own, stream); }));
    }
    fmt::print(
        "{:<17} {:>3} x {}x{}: cuBLASLt {:>8.1f} us {:>6.1f} TFLOP/s, own {:>8.1f} us {:>6.1f} TFLOP/s, {:.3f} "
        "times as fast; {} apart of {}{}{}{}\n",
        batch.name, batch.count, batch.s, batch.l, theirs_us, batch.flops() / theirs_us * 1e-6, ours_us,
        batch.flops() / ours_us * 1e-6, theirs_us / ours_us, difference, largest, good ? "" : " WRONG",
        asymmetric ? fmt::format(", {} not symmetric", asymmetric) : "", same ? "" : ", DIFFERS when run again");
    std::fflush(nullptr);
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace ananke::cuda::sm90

int main(int argc, char** argv) {
  try {
    const std::string what = argc > 1 ? argv[1] : "", variant = argc > 2 ? argv[2] : "3x4",
                      part = argc > 3 ? argv[3] : "";
    ananke::cuda::prepare_environment({});
    if (what == "check" && variant == "swiglu") return ananke::cuda::sm90::check_swiglu(part);
    if (what == "time" && variant == "swiglu") return ananke::cuda::sm90::time_swiglu(part);
    if (what == "check") return ananke::cuda::sm90::check_all(variant, part);
    if (what == "time") return ananke::cuda::sm90::time_all(variant, part);
    if (what == "newton") return ananke::cuda::sm90::time_newton(argc > 2 ? argv[2] : "");
    fmt::print(stderr, "sm90_bench check|time [variant [part of a name]], newton [part of a name]\n");
    return 1;
  } catch (const ananke::Error& error) {
    fmt::print(stderr, "sm90_bench: {}\n", error.what());
    return static_cast<int>(error.kind());
  }
}
