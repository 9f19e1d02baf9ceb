// Speed of the CUDA operators: one line per operator and pass with time, rate and the ratio to cuBLASLt at 8192^3 (what
// computes) or to a copy (what moves bytes: read plus written), both measured in the same run on random numbers. Times
// are the device's: a copy keeps it busy until all launches of a run wait in the queue, as they do in a step, and leaves
// in the cache what no operator asks for.
//
//   cuda_operators_bench [tokens [filter]]       default: 16384, all; on the first GPU that is visible
//
// Other sizes: hidden 2048, 16 query and 4 key heads of 128, documents of 4096 tokens, 64 experts of width 768, top 8,
// vocabulary 32768, activations in bf16.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/cuda_device.h"
#include "plugins/backend_cuda/environment.h"
#include "plugins/backend_cuda/operators/cuda_operators.h"
#include "runtime/base/error.h"

namespace ananke::cuda {
namespace {

constexpr std::int64_t hidden = 2048, query_heads = 16, key_heads = 4, head_dim = 128, document = 4096, experts = 64,
                       width = 768, k = 8, vocabulary = 32768;
constexpr auto half = DType::bf16, single = DType::f32;

class Bench {
 public:
  Bench(std::int64_t tokens_, std::string filter)
      : tokens(tokens_),
        filter_(std::move(filter)),
        device_({0, "bench"}),
        operators_(device_.facts(), device_.memory(), device_.host_memory(), DType::bf16, AttentionChoice::automatic) {
    check(cudaEventCreate(&begin_), "make an event");
    check(cudaEventCreate(&end_), "make an event");
    std::mt19937 engine(1);
    std::normal_distribution<float> normal;
    noise_.resize(1 << 20);
    for (float& value : noise_) value = normal(engine) * 0.3f;
    for (Buffer& buffer : ahead_) buffer = device_.memory().allocate(ahead_bytes, "bench: before a run");
  }
  ~Bench() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  Stream& stream() { return device_.stream(Resource::compute); }
  const OperatorSet& set() { return operators_.set(); }
  std::unique_ptr<CudaOperators> with_grouped(GroupedKernels grouped) {
    return std::make_unique<CudaOperators>(device_.facts(), device_.memory(), device_.host_memory(), DType::bf16,
                                           AttentionChoice::own, false, grouped);
  }
  std::unique_ptr<CudaOperators> with_own_attention() {
    return std::make_unique<CudaOperators>(device_.facts(), device_.memory(), device_.host_memory(), DType::bf16,
                                           AttentionChoice::own);
  }

  // A tensor of random numbers, which lives until the next clear().
  TensorView random(DType dtype, const Shape& shape) {
    const TensorView numbers = take(single, {static_cast<std::int64_t>(noise_.size())});
    check(cudaMemcpy(numbers.data, noise_.data(), numbers.bytes(), cudaMemcpyHostToDevice), "fill a tensor");
    const TensorView made = take(dtype, shape);
    for (std::int64_t at = 0; at < made.elements(); at += numbers.elements()) {
      const std::int64_t count = std::min(numbers.elements(), made.elements() - at);
      const TensorView to = made.slice(at, count).reshaped({1, count}), from = numbers.slice(0, count);
      if (dtype == half) {
        set().wire->to_bf16(stream(), {from.reshaped({1, count}), 0, to});
      } else {
        device_.copy(stream(), to.data, from.data, from.bytes());
      }
    }
    stream().synchronize();
    return made;
  }
  template <class T>
  TensorView filled(const std::vector<T>& values, const Shape& shape) {
    const TensorView made = take(dtype_of<T>(), shape);
    check(cudaMemcpy(made.data, values.data(), made.bytes(), cudaMemcpyHostToDevice), "fill a tensor");
    return made;
  }
  TensorView take(DType dtype, const Shape& shape) {
    const std::size_t bytes = static_cast<std::size_t>(shape.elements()) * size_of(dtype);
    buffers_.push_back(device_.memory().allocate(bytes, "bench"));
    return {buffers_.back().data(), dtype, shape};
  }
  Region region(std::size_t bytes) { return {take(DType::u8, {static_cast<std::int64_t>(bytes)}).data, bytes}; }
  void clear() { buffers_.clear(); }

  bool wanted(const std::string& group) const { return group.find(filter_) != std::string::npos; }

  // Median of some runs after some that warm up, in microseconds.
  double time(const std::function<void()>& run) {
    std::vector<float> times;
    for (int i = 0; i < 13; ++i) {
      const cudaStream_t on = raw(stream());
      check(cudaMemcpyAsync(ahead_[0].data(), ahead_[1].data(), ahead_bytes, cudaMemcpyDeviceToDevice, on), "copy");
      check(cudaEventRecord(begin_, on), "record an event");
      run();
      check(cudaEventRecord(end_, on), "record an event");
      stream().synchronize();
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, begin_, end_), "take a time");
      if (i >= 3) times.push_back(milliseconds);
    }
    operators_.check();
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return static_cast<double>(times[times.size() / 2]) * 1e3;
  }
  void computes(const std::string& name, double flops, const std::function<void()>& run) {
    const double us = time(run), rate = flops / us * 1e-6;
    if (ceiling_ == 0) ceiling_ = rate;
    fmt::print("{:<36} {:>10.1f} us {:>8.1f} TFLOP/s  {:>5.2f} of cuBLASLt 8192^3\n", name, us, rate, rate / ceiling_);
  }
  void moves(const std::string& name, double bytes, const std::function<void()>& run) {
    const double us = time(run), rate = bytes / us * 1e-3;
    if (copy_ == 0) copy_ = rate;
    fmt::print("{:<36} {:>10.1f} us {:>8.1f} GB/s     {:>5.2f} of copy\n", name, us, rate, rate / copy_);
  }

  const std::int64_t tokens;

 private:
  static constexpr std::size_t ahead_bytes = std::size_t{128} << 20;
  const std::string filter_;
  CudaDevice device_;
  CudaOperators operators_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  std::vector<float> noise_;
  std::vector<Buffer> buffers_;
  Buffer ahead_[2];
  double ceiling_ = 0, copy_ = 0;
};

void ceilings(Bench& b) {
  constexpr std::int64_t n = 8192;
  const TensorView x = b.random(half, {n, n}), w = b.random(half, {n, n}), y = b.take(half, {n, n});
  b.computes("cuBLASLt 8192^3", 2.0 * n * n * n, [&] { b.set().linear->forward(b.stream(), {x, w, y}); });
  const TensorView from = b.take(DType::u8, {std::int64_t{1} << 30}), to = b.take(DType::u8, {std::int64_t{1} << 30});
  b.moves("copy of 1 GiB", 2.0 * static_cast<double>(from.bytes()), [&] {
    check(cudaMemcpyAsync(to.data, from.data, from.bytes(), cudaMemcpyDeviceToDevice, raw(b.stream())), "copy");
  });
}

void dense(Bench& b) {
  const std::int64_t t = b.tokens;
  const auto tokens = static_cast<double>(t);
  const TensorView x = b.random(half, {t, hidden}), dy = b.random(half, {t, hidden}), y = b.take(half, {t, hidden});
  const TensorView delta = b.random(half, {t, hidden}), h = b.take(half, {t, hidden}), dh = b.take(half, {t, hidden});
  const TensorView weight = b.random(half, {hidden, hidden}), dweight = b.random(single, {hidden, hidden});
  const double product = 2 * tokens * hidden * hidden, row = tokens * hidden * 2;
  b.computes("linear forward", product, [&] { b.set().linear->forward(b.stream(), {x, weight, y}); });
  b.computes("linear backward", 2 * product, [&] {
    b.set().linear->backward(b.stream(), {x, weight, dy, dh, false, dweight});
  });
  const AddRmsNorm::Sizes n{t, hidden};
  const Region saved = b.region(b.set().add_rms_norm->saved(n)),
               workspace = b.region(b.set().add_rms_norm->workspace(n));
  const TensorView norm = b.random(single, {hidden}), dnorm = b.random(single, {hidden});
  b.moves("add_rms_norm forward", 4 * row, [&] {
    b.set().add_rms_norm->forward(b.stream(), {x, delta, norm, h, y, 1e-6, saved, workspace});
  });
  b.moves("add_rms_norm backward", 4 * row, [&] {
    b.set().add_rms_norm->backward(b.stream(), {h, norm, dy, delta, dh, dnorm, 1e-6, saved, workspace});
  });
  b.moves("add", 3 * row, [&] { b.set().elementwise->add(b.stream(), x, delta, y); });
  std::mt19937 engine(2);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(t));
  for (auto& id : ids) id = static_cast<std::int32_t>(engine() % vocabulary);
  const TensorView table = b.random(half, {vocabulary, hidden}), dtable = b.random(single, {vocabulary, hidden});
  const TensorView token_ids = b.filled(ids, {t});
  b.moves("embedding forward", 2 * row, [&] { b.set().embedding->forward(b.stream(), {token_ids, table, y}); });
  const auto distinct = static_cast<double>(std::set<std::int32_t>(ids.begin(), ids.end()).size());
  b.moves("embedding backward", row + distinct * hidden * 8, [&] {
    b.set().embedding->backward(b.stream(), {token_ids, dy, dtable});
  });
}

// Documents of `document` tokens.
struct Documents {
  std::int64_t count, longest;
  TensorView ends, places;
  double flops;  // of a forward pass; causal: half of all pairs
  explicit Documents(Bench& b) : count((b.tokens + document - 1) / document), longest(std::min(b.tokens, document)) {
    std::vector<std::int32_t> ends_at, places_of;
    for (std::int64_t i = 0; i <= count; ++i) {
      ends_at.push_back(static_cast<std::int32_t>(std::min(b.tokens, i * document)));
    }
    for (std::int64_t i = 0; i < b.tokens; ++i) places_of.push_back(static_cast<std::int32_t>(i % document));
    ends = b.filled(ends_at, {count + 1});
    places = b.filled(places_of, {b.tokens});
    flops = 2.0 * static_cast<double>(b.tokens * longest) * query_heads * head_dim;
  }
  Attention::Sizes sizes(const Bench& b) const { return {b.tokens, query_heads, key_heads, head_dim, count, longest}; }
};

void attend(Bench& b, Attention& attention, const std::string& name) {
  const std::int64_t t = b.tokens;
  const Documents documents(b);
  const Attention::Sizes n = documents.sizes(b);
  const Shape queries{t, query_heads, head_dim}, keys{t, key_heads, head_dim}, cache{n.longest, head_dim / 2};
  const Attention::Inputs in{b.random(half, queries),
                             b.random(half, keys),
                             b.random(half, keys),
                             b.random(single, {head_dim}),
                             b.random(single, {head_dim}),
                             b.random(single, cache),
                             b.random(single, cache),
                             documents.places,
                             {documents.ends, documents.count, n.longest},
                             1e-6};
  const TensorView o = b.take(half, queries), d_o = b.random(half, queries), dq = b.take(half, queries);
  const TensorView dk = b.take(half, keys), dv = b.take(half, keys);
  const TensorView dq_norm = b.random(single, {head_dim}), dk_norm = b.random(single, {head_dim});
  const Region saved = b.region(attention.saved(n)), workspace = b.region(attention.workspace(n));
  b.computes(name + " forward", documents.flops, [&] { attention.forward(b.stream(), {in, o, saved, workspace}); });
  b.computes(name + " backward", 2.5 * documents.flops, [&] {
    attention.backward(b.stream(), {in, o, d_o, dq, dk, dv, dq_norm, dk_norm, saved, workspace});
  });
}

// What cuDNN takes without norms and rotation before it and their gradients behind it.
void attend_by_cudnn_alone(Bench& b) {
  std::string reason;
  const std::unique_ptr<CudnnAttention> cudnn = CudnnAttention::open(reason, false);
  if (!cudnn) {
    fmt::print("cuDNN alone: {}\n", reason);
    return;
  }
  const Documents documents(b);
  const Attention::Sizes n = documents.sizes(b), planned = cudnn->planned(n);
  Carve counted;
  CudnnAttention::layout(counted, planned, false);
  Carve carve(b.region(counted.used()));
  const Shape queries{n.tokens, query_heads, head_dim}, keys{n.tokens, key_heads, head_dim};
  const CudnnAttention::Tensors tensors{.q = b.random(half, queries).data,
                                        .k = b.random(half, keys).data,
                                        .v = b.random(half, keys).data,
                                        .o = b.take(half, queries).data,
                                        .log_sum = b.take(single, {n.tokens, query_heads}).data,
                                        .d_o = b.random(half, queries).data,
                                        .dq = b.take(half, queries).data,
                                        .dk = b.take(half, keys).data,
                                        .dv = b.take(half, keys).data};
  const TensorView valid = b.filled(std::vector<std::int32_t>{1}, {1});
  const RaggedCall call{raw(b.stream()), n, documents.ends.as<std::int32_t>(), valid.as<std::int32_t>(),
                        CudnnAttention::layout(carve, planned, false)};
  b.computes("cuDNN alone forward", documents.flops, [&] { cudnn->forward(call, tensors); });
  b.computes("cuDNN alone backward", 2.5 * documents.flops, [&] { cudnn->backward(call, tensors); });
}

// By cuDNN where it is found: which it is, and its version, stands in the log.
void attention(Bench& b) {
  attend(b, *b.set().attention, "attention");
  attend_by_cudnn_alone(b);
}

void own_attention(Bench& b) {
  const std::unique_ptr<CudaOperators> own = b.with_own_attention();
  attend(b, *own->set().attention, "own attention");
}

void route(Bench& b) {
  const std::int64_t t = b.tokens;
  const TensorView x = b.random(half, {t, hidden}), gate = b.random(single, {experts, hidden});
  const TensorView indices = b.take(DType::i32, {t, k}), weights = b.take(single, {t, k});
  const TensorView counts = b.take(DType::i32, {experts}), dweights = b.random(single, {t, k});
  const TensorView statistics = b.take(DType::f64, {Router::statistics_size(experts)});
  const TensorView dx = b.random(half, {t, hidden}), dgate = b.random(single, {experts, hidden});
  const Router::Sizes n{t, hidden, experts, k};
  const Region saved = b.region(b.set().router->saved(n)), workspace = b.region(b.set().router->workspace(n));
  const double row = static_cast<double>(t) * hidden * 2;
  b.moves("router forward", row, [&] {
    b.set().router->forward(b.stream(),
                            {x, gate, {}, {}, false, indices, weights, counts, statistics, saved, workspace});
  });
  b.moves("router backward", 3 * row, [&] {
    b.set().router->backward(b.stream(), {x, gate, {}, indices, weights, dweights, {}, dx, dgate, saved, workspace});
  });
}

void mixture(Bench& b) {
  const std::int64_t t = b.tokens, slots = t * k;
  std::mt19937 engine(3);
  std::vector<std::int32_t> chosen, all(experts);
  std::iota(all.begin(), all.end(), 0);
  for (std::int64_t i = 0; i < t; ++i) {
    for (int j = 0; j < k; ++j) std::swap(all[j], all[j + static_cast<int>(engine() % (experts - j))]);
    chosen.insert(chosen.end(), all.begin(), all.begin() + k);
  }
  const TensorView x = b.random(half, {t, hidden}), indices = b.filled(chosen, {t, k}),
                   rows = b.take(half, {slots, hidden});
  const TensorView offsets = b.take(DType::i32, {experts + 1}), places = b.take(DType::i32, {slots});
  const TensorView weights = b.random(single, {t, k}), dweights = b.take(single, {t, k}),
                   row_weights = b.take(single, {slots}), d_row_weights = b.random(single, {slots}),
                   y = b.take(half, {t, hidden});
  const TensorView drows = b.take(half, {slots, hidden}), dx = b.take(half, {t, hidden});
  const Region sorting = b.region(b.set().permute->workspace(slots, experts));
  const double row = static_cast<double>(t) * hidden * 2;
  b.moves("permute forward", (k + 1) * row, [&] {
    b.set().permute->forward(b.stream(), {x, indices, experts, rows, offsets, places}, sorting);
  });
  b.moves("permute backward", (k + 1) * row, [&] {
    b.set().permute->backward(b.stream(), {rows, places, dx, d_row_weights, dweights});
  });
  b.moves("combine forward", (k + 1) * row, [&] {
    b.set().permute->combine_forward(b.stream(), {rows, places, weights, y});
  });
  b.moves("combine backward", (k + 1) * row, [&] {
    b.set().permute->combine_backward(b.stream(), {places, weights, y, drows, row_weights});
  });
  constexpr std::int64_t block = hidden * width;
  const TensorView stack = b.random(half, {experts * 3 * block}), gradient = b.random(single, {experts * 3 * block});
  const auto stacks = [&](const TensorView& of) {
    return GroupedMlp::Weights{{of.slice(0, block).reshaped({width, hidden}), 3 * block},
                               {of.slice(block, block).reshaped({width, hidden}), 3 * block},
                               {of.slice(2 * block, block).reshaped({hidden, width}), 3 * block}};
  };
  const GroupedMlp::Sizes n{slots, hidden, width, experts};
  const Region saved = b.region(b.set().grouped_mlp->saved(n)), workspace = b.region(b.set().grouped_mlp->workspace(n));
  const TensorView outputs = b.take(half, {slots, hidden});
  const double flops = 6.0 * static_cast<double>(slots) * static_cast<double>(block);
  b.computes("grouped_mlp forward", flops, [&] {
    b.set().grouped_mlp->forward(b.stream(), {rows, offsets, stacks(stack), outputs, saved, workspace});
  });
  b.computes("grouped_mlp backward", 2 * flops, [&] {
    b.set().grouped_mlp->backward(b.stream(), {rows,
                                               offsets,
                                               stacks(stack),
                                               outputs,
                                               drows,
                                               stacks(gradient),
                                               saved,
                                               workspace,
                                               {},
                                               row_weights,
                                               d_row_weights});
  });
}

// Experts of M5 (site/local/jobs/m5.textproto) and of W2, by either kind of kernels; not all experts have as many rows.
// Rows and what is made of them fill most of a GPU of 141 GB at W2's size.
void grouped(Bench& b) {
  struct Experts {
    const char* name;
    std::int64_t count, rows, hidden, width;
  };
  for (const Experts& e : {Experts{"M5", 64, 2048, 2048, 768}, Experts{"W2", 96, 5461, 6144, 1792}}) {
    std::mt19937 engine(4);
    std::normal_distribution<double> normal(1, 0.25);
    std::vector<std::int32_t> offsets{0};
    for (std::int64_t i = 0; i < e.count; ++i) {
      const double rows = static_cast<double>(e.rows) * normal(engine);
      offsets.push_back(offsets.back() + static_cast<std::int32_t>(std::max(1.0, std::round(rows))));
    }
    const GroupedMlp::Sizes n{offsets.back(), e.hidden, e.width, e.count};
    const Shape table{n.rows, n.hidden};
    const std::int64_t block = n.hidden * n.width;
    const TensorView stack = b.random(half, {n.groups * 3 * block}), sums = b.random(single, {n.groups * 3 * block});
    const auto stacks = [&](const TensorView& of) {
      return GroupedMlp::Weights{{of.slice(0, block).reshaped({n.width, n.hidden}), 3 * block},
                                 {of.slice(block, block).reshaped({n.width, n.hidden}), 3 * block},
                                 {of.slice(2 * block, block).reshaped({n.hidden, n.width}), 3 * block}};
    };
    const TensorView x = b.random(half, table), y = b.take(half, table), dy = b.random(half, table),
                     dx = b.take(half, table), ends = b.filled(offsets, {n.groups + 1});
    const Region saved = b.region(b.set().grouped_mlp->saved(n)), work = b.region(b.set().grouped_mlp->workspace(n));
    const double flops = 6.0 * static_cast<double>(n.rows) * static_cast<double>(block);
    for (const auto kernels : {GroupedKernels::cublaslt, GroupedKernels::sm90}) {
      const std::unique_ptr<CudaOperators> made = b.with_grouped(kernels);
      GroupedMlp& mlp = *made->set().grouped_mlp;
      const std::string name =
          fmt::format("{} experts by {}", e.name, kernels == GroupedKernels::sm90 ? "sm90" : "cuBLASLt");
      b.computes(name + " forward", flops, [&] { mlp.forward(b.stream(), {x, ends, stacks(stack), y, saved, work}); });
      b.computes(name + " backward", 2 * flops, [&] {
        mlp.backward(b.stream(), {x, ends, stacks(stack), dy, dx, stacks(sums), saved, work});
      });
    }
    b.clear();
  }
}

void head(Bench& b) {
  const std::int64_t t = b.tokens;
  std::vector<std::int32_t> wanted(static_cast<std::size_t>(t));
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = static_cast<std::int32_t>(i * 7919 % vocabulary);
  const TensorView x = b.random(half, {t, hidden}), weight = b.random(half, {vocabulary, hidden});
  const TensorView targets = b.filled(wanted, {t}), loss = b.filled(std::vector<double>{0}, {1});
  const TensorView scale = b.filled(std::vector<float>{1e-4f}, {1}), dx = b.take(half, {t, hidden});
  const TensorView dweight = b.random(single, {vocabulary, hidden});
  const Region workspace = b.region(b.set().head_loss->workspace({t, hidden, vocabulary}));
  const double flops = 2.0 * static_cast<double>(t) * hidden * vocabulary;
  b.computes("head_loss forward", flops, [&] {
    b.set().head_loss->forward(b.stream(), {x, weight, targets, loss, {}, workspace});
  });
  b.computes("head_loss forward_backward", 3 * flops, [&] {
    b.set().head_loss->forward_backward(b.stream(), {x, weight, targets, loss, scale, dx, dweight, {}, workspace});
  });
}

void optimizers(Bench& b) {
  constexpr std::int64_t n = std::int64_t{1} << 28;
  const TensorView w = b.random(single, {n}), g = b.random(single, {n}), m = b.random(single, {n}),
                   v = b.random(single, {n});
  const TensorView scale = b.filled(std::vector<float>{1}, {1}), finite = b.filled(std::vector<std::int32_t>{1}, {1});
  const TensorView sum = b.filled(std::vector<double>{0}, {1}), hash = b.take(DType::i64, {2});
  const double bytes = 4.0 * static_cast<double>(n);
  b.moves("adamw", 7 * bytes, [&] {
    b.set().adamw->update(b.stream(), {w, g, m, v, 1e-4, 0.9, 0.95, 1e-8, 0.1, 2, scale, finite});
  });
  b.moves("momentum accumulate", 4 * bytes, [&] {
    b.set().momentum->accumulate(b.stream(), {g, m, v, 0.95, true, scale, finite});
  });
  b.moves("momentum apply", 3 * bytes, [&] { b.set().momentum->apply(b.stream(), {w, v, 0.99, 0.01, finite}); });
  b.moves("square_sum", bytes, [&] { b.set().elementwise->square_sum(b.stream(), g, sum); });
  b.moves("hash", bytes, [&] { b.set().elementwise->hash(b.stream(), g, hash); });
}

// Matrices of W2's experts (site/local/jobs/w2.textproto), as many as are computed at a time.
void newton_schulz(Bench& b) {
  constexpr std::int64_t count = 8, narrow = 1792, wide = 6144;
  const TensorView finite = b.filled(std::vector<std::int32_t>{1}, {1});
  const double step = 2.0 * narrow * narrow * (2.0 * wide + narrow);
  for (const auto kernels : {GroupedKernels::cublaslt, GroupedKernels::sm90}) {
    const std::unique_ptr<CudaOperators> made = b.with_grouped(kernels);
    NewtonSchulz& operation = *made->set().newton_schulz;
    for (const auto& [rows, columns] : {std::pair(narrow, wide), std::pair(wide, narrow)}) {
      const TensorView matrices = b.random(single, {count, rows, columns});
      const Region workspace = b.region(operation.workspace({count, rows, columns}));
      const char* whose = kernels == GroupedKernels::sm90 ? "sm90" : "cuBLASLt";
      b.computes(fmt::format("newton_schulz {} x {} x {} by {}", count, rows, columns, whose), 5 * count * step, [&] {
        operation.run(b.stream(),
                      {matrices, 5, 3.4445, -4.775, 2.0315, 1e-7, NewtonSchulz::Precision::bf16, finite, workspace});
      });
    }
  }
}

void wire(Bench& b) {
  constexpr std::int64_t ranks = 8, n = std::int64_t{1} << 25, columns = 4096;
  const TensorView x = b.random(single, {ranks, n}), halves = b.random(half, {ranks, n}), sum = b.take(single, {n});
  const double elements = static_cast<double>(ranks) * static_cast<double>(n);
  b.moves("to_bf16", 6 * elements, [&] { b.set().wire->to_bf16(b.stream(), {x, 0, halves}); });
  b.moves("from_bf16", 6 * elements, [&] { b.set().wire->from_bf16(b.stream(), halves, x); });
  b.moves("landing_sum of 8", 2 * elements + 4 * static_cast<double>(n), [&] {
    b.set().wire->landing_sum(b.stream(), {halves, sum, false});
  });
  std::vector<std::int64_t> table;
  constexpr std::int64_t pieces = 32, size = ranks * n / pieces;
  std::int64_t bytes = 0;
  for (std::int64_t i = 0; i < pieces; ++i) {
    const Wire::BlockPiece piece{columns, 0, size, i * size, bytes, bytes + size};
    table.insert(table.end(), {piece.columns, piece.begin, piece.count, piece.values, piece.codes, piece.scales});
    bytes = piece.scales + Wire::scales_of(piece);
  }
  const TensorView list = b.filled(table, {pieces, Wire::fields}), codes = b.take(DType::u8, {bytes});
  const TensorView flat = x.reshaped({ranks * n});
  b.moves("quantise fp8", 5 * elements, [&] { b.set().wire->quantise(b.stream(), list, flat, codes); });
  b.moves("dequantise fp8", 5 * elements, [&] { b.set().wire->dequantise(b.stream(), list, codes, flat); });
}

void run(std::int64_t tokens, const std::string& filter) {
  Bench b(tokens, filter);
  ceilings(b);
  b.clear();
  const std::pair<const char*, void (*)(Bench&)> groups[] = {
      {"dense", dense},  {"attention", attention},   {"own_attention", own_attention},
      {"router", route}, {"mixture", mixture},       {"grouped", grouped},
      {"head", head},    {"optimizers", optimizers}, {"newton_schulz", newton_schulz},
      {"wire", wire}};
  for (const auto& [name, group] : groups) {
    if (!b.wanted(name)) continue;
    group(b);
    b.clear();
  }
}

}  // namespace
}  // namespace ananke::cuda

int main(int argc, char** argv) {
  try {
    ananke::cuda::prepare_environment({});
    ananke::cuda::run(argc > 1 ? std::atoll(argv[1]) : 16384, argc > 2 ? argv[2] : "");
  } catch (const ananke::Error& error) {
    fmt::print(stderr, "cuda_operators_bench: {}\n", error.what());
    return static_cast<int>(error.kind());
  }
}
