// Speed of the host operators: one line per operator and pass with time, rate and the ratio to one large sgemm (what
// computes) or to memcpy (what moves bytes) measured in the same run.
//
//   operators_bench [threads [tokens [hidden [filter]]]]       default: 1 1024 192, all
//
// Other sizes follow: heads of 32, one key head for three query heads, 8 experts of width 4/3 hidden, top 2, bytes as
// vocabulary, documents of 256 tokens.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plugins/backend_host/host_stream.h"
#include "plugins/backend_host/operators/gemm.h"
#include "plugins/backend_host/operators/host_operators.h"
#include "plugins/backend_host/thread_pool.h"

namespace ananke::host {
namespace {

struct Sizes {
  std::int64_t tokens, hidden, head_dim = 32, experts = 8, k = 2, vocabulary = 256, document = 256;
  std::int64_t heads() const { return std::max<std::int64_t>(1, hidden / head_dim); }
  std::int64_t key_heads() const { return heads() % 3 == 0 ? heads() / 3 : 1; }
  std::int64_t width() const { return hidden * 4 / 3; }
};

// Tensors of one run, filled with small random numbers; freed together.
class Memory {
 public:
  TensorView floats(Shape shape) {
    TensorView view = take<float>(shape);
    std::uniform_real_distribution<float> uniform(-0.5f, 0.5f);
    for (std::int64_t i = 0; i < view.elements(); ++i) view.as<float>()[i] = uniform(engine_);
    return view;
  }
  template <class T>
  TensorView filled(Shape shape, const std::function<T(std::int64_t)>& value) {
    TensorView view = take<T>(shape);
    for (std::int64_t i = 0; i < view.elements(); ++i) view.as<T>()[i] = value(i);
    return view;
  }
  Region region(std::size_t bytes) { return {take<std::uint8_t>({static_cast<std::int64_t>(bytes)}).data, bytes}; }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{256}); }
  };
  template <class T>
  TensorView take(Shape shape) {
    const std::size_t bytes = static_cast<std::size_t>(shape.elements()) * sizeof(T) + 256;
    pieces_.emplace_back(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{256})));
    std::memset(pieces_.back().get(), 0, bytes);
    return view_of(reinterpret_cast<T*>(pieces_.back().get()), shape);
  }
  std::mt19937 engine_{1};
  std::vector<std::unique_ptr<std::byte, Free>> pieces_;
};

class Bench {
 public:
  Bench(int threads, std::string filter)
      : filter_(std::move(filter)), pool_(threads), operators_(pool_), stream_("bench") {}
  const OperatorSet* operator->() const { return &operators_.set(); }
  Stream& stream() { return stream_; }

  // The two yardsticks.
  void measure_limits(Memory& memory) {
    constexpr std::int64_t side = 1024, bytes = 64 << 20;
    const TensorView a = memory.floats({side, side}), b = memory.floats({side, side}), c = memory.floats({side, side});
    peak_flops_ =
        2.0 * side * side * side / seconds([&] {
          gemm(pool_, side, side, side, 1, {a.as<float>(), side}, {b.as<float>(), side, true}, 0, c.as<float>(), side);
        });
    const Region from = memory.region(bytes), to = memory.region(bytes);
    peak_bytes_ = 2.0 * bytes / seconds([&] {
                    pool_.run_blocks(bytes, bytes / 16, [&](std::int64_t begin, std::int64_t end) {
                      std::memcpy(static_cast<char*>(to.data) + begin, static_cast<char*>(from.data) + begin,
                                  static_cast<std::size_t>(end - begin));
                    });
                  });
    fmt::print("{} thread(s): sgemm {}^3 {:.1f} GFLOP/s, memcpy {:.1f} GB/s\n", pool_.threads(), side,
               peak_flops_ * 1e-9, peak_bytes_ * 1e-9);
  }
  void flops(const char* name, double flops, const std::function<void()>& call) {
    if (std::string_view(name).find(filter_) == std::string_view::npos) return;
    const double time = seconds(call);
    total_ += time;
    fmt::print("{:28} {:10.1f} us {:8.1f} GFLOP/s {:6.2f} of sgemm\n", name, time * 1e6, flops / time * 1e-9,
               flops / time / peak_flops_);
  }
  void bytes(const char* name, double bytes, const std::function<void()>& call) {
    if (std::string_view(name).find(filter_) == std::string_view::npos) return;
    const double time = seconds(call);
    total_ += time;
    fmt::print("{:28} {:10.1f} us {:8.1f} GB/s    {:6.2f} of memcpy\n", name, time * 1e6, bytes / time * 1e-9,
               bytes / time / peak_bytes_);
  }
  // Per parameter, and against `plain` doing the same without what the operator saves.
  void optimizer(const std::string& name, double parameters, double flops, const std::function<void()>& call,
                 const std::function<void()>& plain) {
    if (name.find(filter_) == std::string::npos) return;
    const double time = seconds(call), plain_time = seconds(plain);
    total_ += time;
    fmt::print("{:28} {:10.1f} us {:8.2f} ns a parameter, {:6.2f} of sgemm, {:.2f} of the plain products\n", name,
               time * 1e6, time / parameters * 1e9, flops / time / peak_flops_, time / plain_time);
  }
  // On the bench's stream, as operators run.
  void on_stream(std::function<void(ThreadPool&)> work) {
    stream_.enqueue([this, work = std::move(work)] { work(pool_); });
  }
  double total() const { return total_; }

 private:
  // The fastest of several rounds: other work on the machine only ever adds time. With one thread, processor time,
  // which other work disturbs less.
  double now() const {
    timespec time{};
    clock_gettime(pool_.threads() == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
  double seconds(const std::function<void()>& call) {
    call();
    stream_.synchronize();
    double best = 1e30, spent = 0;
    while (spent < 0.2) {
      const int calls = best > 1e-3 ? 1 : 8;
      const double start = now();
      for (int i = 0; i < calls; ++i) call();
      stream_.synchronize();
      const double time = now() - start;
      spent += time;
      best = std::min(best, time / calls);
    }
    return best;
  }
  const std::string filter_;
  ThreadPool pool_;
  HostOperators operators_;
  HostStream stream_;
  double peak_flops_ = 0, peak_bytes_ = 0, total_ = 0;
};

void bench_bandwidth(Bench& bench, Memory& memory, const Sizes& n) {
  const Shape shape{n.tokens, n.hidden};
  const double size = static_cast<double>(shape.elements()) * sizeof(float);
  const TensorView x = memory.floats(shape), delta = memory.floats(shape), w = memory.floats({n.hidden});
  const TensorView h = memory.floats(shape), y = memory.floats(shape), dw = memory.floats({n.hidden});
  const AddRmsNorm::Sizes norm{n.tokens, n.hidden};
  const Region saved = memory.region(bench->add_rms_norm->saved(norm)),
               workspace = memory.region(bench->add_rms_norm->workspace(norm));
  bench.bytes("add_rms_norm forward", 4 * size, [&] {
    bench->add_rms_norm->forward(bench.stream(), {x, delta, w, h, y, 1e-6, saved, workspace});
  });
  bench.bytes("add_rms_norm backward", 4 * size, [&] {
    bench->add_rms_norm->backward(bench.stream(), {h, w, y, delta, x, dw, 1e-6, saved, workspace});
  });
  bench.bytes("add", 3 * size, [&] { bench->elementwise->add(bench.stream(), x, delta, y); });
  const TensorView ids = memory.filled<std::int32_t>(
      {n.tokens}, [&](std::int64_t t) { return static_cast<std::int32_t>(t * 37 % n.vocabulary); });
  const TensorView table = memory.floats({n.vocabulary, n.hidden}), dtable = memory.floats({n.vocabulary, n.hidden});
  bench.bytes("embedding forward", 2 * size, [&] { bench->embedding->forward(bench.stream(), {ids, table, y}); });
  bench.bytes("embedding backward", 3 * size, [&] { bench->embedding->backward(bench.stream(), {ids, y, dtable}); });
  const std::int64_t parameters = 1 << 20;
  const TensorView p = memory.floats({parameters}), g = memory.floats({parameters}), m = memory.floats({parameters});
  const TensorView v = memory.filled<float>({parameters}, [](std::int64_t) { return 1e-3f; });
  const TensorView one = memory.filled<float>({1}, [](std::int64_t) { return 1.0f; });
  const TensorView finite = memory.filled<std::int32_t>({1}, [](std::int64_t) { return 1; });
  const TensorView sum = memory.filled<double>({1}, [](std::int64_t) { return 0.0; });
  bench.bytes("adamw (1 Mi parameters)", 7.0 * 4 * static_cast<double>(parameters), [&] {
    bench->adamw->update(bench.stream(), {p, g, m, v, 1e-3, 0.9, 0.95, 1e-8, 0.1, 10, one, finite});
  });
  bench.bytes("square_sum (1 Mi)", 4.0 * static_cast<double>(parameters),
              [&] { bench->elementwise->square_sum(bench.stream(), g, sum); });
}

void bench_dense(Bench& bench, Memory& memory, const Sizes& n) {
  const std::int64_t out = n.heads() * n.head_dim;
  const double flops = 2.0 * static_cast<double>(n.tokens * n.hidden * out);
  const TensorView x = memory.floats({n.tokens, n.hidden}), w = memory.floats({out, n.hidden});
  const TensorView y = memory.floats({n.tokens, out}), dx = memory.floats({n.tokens, n.hidden});
  const TensorView dw = memory.floats({out, n.hidden});
  bench.flops("linear forward", flops, [&] { bench->linear->forward(bench.stream(), {x, w, y}); });
  bench.flops("linear backward", 2 * flops, [&] { bench->linear->backward(bench.stream(), {x, w, y, dx, false, dw}); });

  const HeadLoss::Sizes head{n.tokens, n.hidden, n.vocabulary};
  const TensorView table = memory.floats({n.vocabulary, n.hidden}), dtable = memory.floats({n.vocabulary, n.hidden});
  const TensorView targets = memory.filled<std::int32_t>(
      {n.tokens}, [&](std::int64_t t) { return static_cast<std::int32_t>(t * 31 % n.vocabulary); });
  const TensorView loss = memory.filled<double>({1}, [](std::int64_t) { return 0.0; });
  const TensorView scale = memory.filled<float>({1}, [](std::int64_t) { return 1e-3f; });
  const Region workspace = memory.region(bench->head_loss->workspace(head));
  const double head_flops = 2.0 * static_cast<double>(n.tokens * n.hidden * n.vocabulary);
  bench.flops("head_loss forward", head_flops, [&] {
    bench->head_loss->forward(bench.stream(), {x, table, targets, loss, {}, workspace});
  });
  bench.flops("head_loss forward_backward", 3 * head_flops, [&] {
    bench->head_loss->forward_backward(bench.stream(), {x, table, targets, loss, scale, dx, dtable, {}, workspace});
  });
}

void bench_attention(Bench& bench, Memory& memory, const Sizes& n) {
  const std::int64_t documents = (n.tokens + n.document - 1) / n.document;
  const Attention::Sizes sizes{n.tokens,   n.heads(), n.key_heads(),
                               n.head_dim, documents, std::min(n.document, n.tokens)};
  const Shape queries{n.tokens, n.heads(), n.head_dim}, keys{n.tokens, n.key_heads(), n.head_dim};
  const TensorView q = memory.floats(queries), k = memory.floats(keys), v = memory.floats(keys);
  const TensorView norm = memory.floats({n.head_dim}), o = memory.floats(queries), d_o = memory.floats(queries);
  const TensorView dq = memory.floats(queries), dk = memory.floats(keys), dv = memory.floats(keys);
  const TensorView dnorm = memory.floats({n.head_dim});
  const TensorView cosine = memory.floats({n.document, n.head_dim / 2}),
                   sine = memory.floats({n.document, n.head_dim / 2});
  const TensorView positions = memory.filled<std::int32_t>(
      {n.tokens}, [&](std::int64_t t) { return static_cast<std::int32_t>(t % n.document); });
  const TensorView offsets = memory.filled<std::int32_t>(
      {documents + 1}, [&](std::int64_t s) { return static_cast<std::int32_t>(std::min(s * n.document, n.tokens)); });
  const Attention::Inputs in{q, k, v, norm, norm, cosine, sine, positions, {offsets, documents, sizes.longest}, 1e-6};
  const Region saved = memory.region(bench->attention->saved(sizes)),
               workspace = memory.region(bench->attention->workspace(sizes));
  // Two products per pass of the scores' causal half.
  const double flops = 2.0 * static_cast<double>(n.tokens * sizes.longest * n.heads() * n.head_dim);
  bench.flops("attention forward", flops, [&] {
    bench->attention->forward(bench.stream(), {in, o, saved, workspace});
  });
  bench.flops("attention backward", 2.5 * flops, [&] {
    bench->attention->backward(bench.stream(), {in, o, d_o, dq, dk, dv, dnorm, dnorm, saved, workspace});
  });
}

void bench_experts(Bench& bench, Memory& memory, const Sizes& n) {
  const std::int64_t slots = n.tokens * n.k;
  const TensorView x = memory.floats({n.tokens, n.hidden}), dx = memory.floats({n.tokens, n.hidden});
  const TensorView gate = memory.floats({n.experts, n.hidden}), dgate = memory.floats({n.experts, n.hidden});
  const TensorView indices = memory.filled<std::int32_t>({n.tokens, n.k}, [](std::int64_t) { return 0; });
  const TensorView weights = memory.floats({n.tokens, n.k}), dweights = memory.floats({n.tokens, n.k});
  const TensorView counts = memory.filled<std::int32_t>({n.experts}, [](std::int64_t) { return 0; });
  const TensorView statistics =
      memory.filled<double>({Router::statistics_size(n.experts)}, [](std::int64_t) { return 0; });
  const Router::Sizes router{n.tokens, n.hidden, n.experts, n.k};
  const Region saved = memory.region(bench->router->saved(router)),
               workspace = memory.region(bench->router->workspace(router));
  const double size = 4.0 * static_cast<double>(n.tokens * n.hidden);
  bench.bytes("router forward", size, [&] {
    bench->router->forward(bench.stream(),
                           {x, gate, {}, {}, false, indices, weights, counts, statistics, saved, workspace});
  });
  bench.bytes("router backward", 3 * size, [&] {
    bench->router->backward(bench.stream(), {x, gate, {}, indices, weights, dweights, {}, dx, dgate, saved, workspace});
  });

  const TensorView rows = memory.floats({slots, n.hidden}), drows = memory.floats({slots, n.hidden});
  const TensorView row_weights = memory.floats({slots}), d_row_weights = memory.floats({slots});
  const TensorView offsets = memory.filled<std::int32_t>({n.experts + 1}, [](std::int64_t) { return 0; });
  const TensorView places = memory.filled<std::int32_t>({slots}, [](std::int64_t) { return 0; });
  const Region sort = memory.region(bench->permute->workspace(slots, n.experts));
  const double copies = static_cast<double>(n.k) * size;
  bench.bytes("permute forward", 2 * copies, [&] {
    bench->permute->forward(bench.stream(), {x, indices, n.experts, rows, offsets, places}, sort);
  });
  bench.bytes("permute backward", copies + size, [&] {
    bench->permute->backward(bench.stream(), {drows, places, dx, d_row_weights, dweights});
  });
  bench.bytes("combine forward", copies + size, [&] {
    bench->permute->combine_forward(bench.stream(), {rows, places, weights, x});
  });
  bench.bytes("combine backward", copies + size, [&] {
    bench->permute->combine_backward(bench.stream(), {places, weights, x, drows, row_weights});
  });

  const GroupedMlp::Sizes mlp{slots, n.hidden, n.width(), n.experts};
  const std::int64_t stride = n.hidden * n.width();
  const auto stacks = [&] {
    const TensorView all = memory.floats({n.experts * 3, stride});
    const auto stack = [&](std::int64_t at, Shape shape) {
      return MatrixStack{all.slice(at * n.experts * stride, stride).reshaped(shape), stride};
    };
    return GroupedMlp::Weights{stack(0, {n.width(), n.hidden}), stack(1, {n.width(), n.hidden}),
                               stack(2, {n.hidden, n.width()})};
  };
  const GroupedMlp::Weights w = stacks(), dw = stacks();
  const Region mlp_saved = memory.region(bench->grouped_mlp->saved(mlp)),
               mlp_workspace = memory.region(bench->grouped_mlp->workspace(mlp));
  const TensorView y = memory.floats({slots, n.hidden});
  const double flops = 6.0 * static_cast<double>(slots * stride);
  bench.flops("grouped_mlp forward", flops, [&] {
    bench->grouped_mlp->forward(bench.stream(), {rows, offsets, w, y, mlp_saved, mlp_workspace});
  });
  bench.flops("grouped_mlp backward", 2 * flops, [&] {
    bench->grouped_mlp->backward(
        bench.stream(), {rows, offsets, w, y, drows, dw, mlp_saved, mlp_workspace, {}, row_weights, d_row_weights});
  });
}

// Newton-Schulz on matrices as a layer has them: every expert's at once, and an attention projection. `flops` and the
// plain formulation multiply both square products whole.
void bench_newton_schulz(Bench& bench, Memory& memory, const Sizes& n) {
  struct Shapes {
    const char* what;
    std::int64_t count, rows, columns;
  };
  for (const Shapes& m : {Shapes{"experts", n.experts, n.width(), n.hidden},
                          Shapes{"projection", 1, n.hidden, n.heads() * n.head_dim}, Shapes{"large", 1, 1024, 1024}}) {
    constexpr int steps = 5;
    const std::int64_t s = std::min(m.rows, m.columns), l = std::max(m.rows, m.columns);
    const TensorView matrices = memory.floats({m.count, m.rows, m.columns});
    const TensorView finite = memory.filled<std::int32_t>({1}, [](std::int64_t) { return 1; });
    const Region workspace = memory.region(bench->newton_schulz->workspace({m.count, m.rows, m.columns}));
    const TensorView x = memory.floats({s, l}), y = memory.floats({s, l}), a = memory.floats({s, s}),
                     b = memory.floats({s, s});
    const auto plain = [=](ThreadPool& pool) {
      for (std::int64_t i = 0; i < m.count * steps; ++i) {
        const float* px = x.as<float>();
        float *pa = a.as<float>(), *pb = b.as<float>(), *py = y.as<float>();
        gemm(pool, s, s, l, 1, {px, l}, {px, l, true}, 0, pa, s);
        std::copy(pa, pa + s * s, pb);
        gemm(pool, s, s, s, 2.0315f, {pa, s}, {pa, s}, -4.775f, pb, s);
        std::copy(px, px + s * l, py);
        gemm(pool, s, l, s, 1, {pb, s}, {px, l}, 3.4445f, py, l);
      }
    };
    bench.optimizer(
        fmt::format("newton_schulz {}", m.what), static_cast<double>(m.count * m.rows * m.columns),
        2.0 * steps * static_cast<double>(m.count * s * s * (2 * l + s)),
        [&] {
          bench->newton_schulz->run(bench.stream(), {matrices, steps, 3.4445, -4.7750, 2.0315, 1e-7,
                                                     NewtonSchulz::Precision::f32, finite, workspace});
        },
        [&] { bench.on_stream(plain); });
  }
}

int run(int threads, const Sizes& n, const std::string& filter) {
  Bench bench(threads, filter);
  Memory memory;
  bench.measure_limits(memory);
  fmt::print("{} tokens, hidden {}, {} query and {} key heads of {}, {} experts of width {}, top {}, vocabulary {}\n",
             n.tokens, n.hidden, n.heads(), n.key_heads(), n.head_dim, n.experts, n.width(), n.k, n.vocabulary);
  bench_bandwidth(bench, memory, n);
  bench_dense(bench, memory, n);
  bench_attention(bench, memory, n);
  bench_experts(bench, memory, n);
  bench_newton_schulz(bench, memory, n);
  fmt::print("{:28} {:10.1f} us\n", "sum", bench.total() * 1e6);
  return 0;
}

}  // namespace
}  // namespace ananke::host

int main(int argc, char** argv) {
  const auto number = [&](int at, std::int64_t otherwise) { return argc > at ? std::atoll(argv[at]) : otherwise; };
  return ananke::host::run(static_cast<int>(number(1, 1)), {number(2, 1024), number(3, 192)}, argc > 4 ? argv[4] : "");
}
