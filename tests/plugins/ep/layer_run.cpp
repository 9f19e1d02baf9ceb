#include "tests/plugins/ep/layer_run.h"

#include <google/protobuf/text_format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "plugins/ep/ep.pb.h"
#include "runtime/comm/rank_threads.h"
#include "runtime/model/local_experts.h"
#include "runtime/model/region_cutter.h"
#include "runtime/plugin/descriptor.h"
#include "runtime/plugin/registry.h"
#include "tests/runtime/comm/small_model.h"

extern "C" const ananke::PluginDescriptorV1* ananke_plugin_v1();

namespace ananke::testing {
namespace {

const std::filesystem::path library = ANANKE_BINARY_DIR "/lib/ananke";

std::unique_ptr<Experts> make_ep(const std::string& text, const RoleContext& context) {
  plugin::Ep config;
  if (!google::protobuf::TextFormat::ParseFromString(text, &config)) fail(ErrorKind::config, "no config: {}", text);
  const std::string bytes = config.SerializeAsString();
  void* object = nullptr;
  char message[256] = "";
  const int code = ananke_plugin_v1()->create(&context, bytes.data(), bytes.size(), &object, message, sizeof message);
  if (code != 0) fail(static_cast<ErrorKind>(code), "{}", message);
  return std::unique_ptr<Experts>(static_cast<Experts*>(object));
}

// Notes what is called; everything else is the real one's.
class NotingCommunicator : public Communicator {
 public:
  NotingCommunicator(Communicator& real, std::vector<std::string>& notes, const LayerHooks& hooks)
      : real_(real), notes_(notes), hooks_(hooks) {}
  int rank() const override { return real_.rank(); }
  int size() const override { return real_.size(); }
  void all_gather(Stream& stream, const TensorView& send, const TensorView& receive) override {
    notes_.push_back("all_gather");
    real_.all_gather(stream, send, receive);
  }
  void reduce_scatter(Stream& stream, const TensorView& send, const TensorView& receive) override {
    notes_.push_back("reduce_scatter");
    real_.reduce_scatter(stream, send, receive);
  }
  void all_reduce(Stream& stream, const TensorView& buffer, Reduction reduction) override {
    notes_.push_back("all_reduce");
    real_.all_reduce(stream, buffer, reduction);
  }
  void broadcast(Stream& stream, const TensorView& buffer, int root) override {
    notes_.push_back("broadcast");
    real_.broadcast(stream, buffer, root);
  }
  void all_to_all(Stream& stream, const TensorView& send, std::span<const std::int64_t> send_counts,
                  const TensorView& receive, std::span<const std::int64_t> receive_counts) override {
    notes_.push_back(std::string("all_to_all ") + name_of(send.dtype));
    std::int64_t elements = 0;
    for (int p = 0; p < size(); ++p) elements += p == rank() ? 0 : receive_counts[static_cast<std::size_t>(p)];
    const std::int64_t bytes = elements * static_cast<std::int64_t>(size_of(receive.dtype));
    if (hooks_.exchange_begins) hooks_.exchange_begins(rank(), stream, bytes);
    real_.all_to_all(stream, send, send_counts, receive, receive_counts);
    if (hooks_.exchange_ended) hooks_.exchange_ended(rank(), stream, bytes);
  }
  bool share(Stream& stream, const TensorView& memory) override { return real_.share(stream, memory); }
  void all_to_all_rows(Stream& stream, const RowExchange& a) override {
    notes_.push_back("all_to_all_rows " + std::to_string(a.send.shape[1]));
    if (hooks_.exchange_begins) hooks_.exchange_begins(rank(), stream, -1);
    real_.all_to_all_rows(stream, a);
    if (hooks_.exchange_ended) hooks_.exchange_ended(rank(), stream, -1);
  }
  void abort() noexcept override { real_.abort(); }

 private:
  Communicator& real_;
  std::vector<std::string>& notes_;
  const LayerHooks& hooks_;
};

// A rank's device and everything that lives longer than one case.
struct Bench {
  Bench(int rank, int ranks, Rendezvous& rendezvous)
      : context{job, site, {1, ranks, ranks}, rank, ranks}, table(make_model({})), placement(table, context.mesh) {
    plugins.load("backend_host", library / "backend_host.so");
    backend = plugins.create<Backend>("backend_host", context, "");
    std::vector<int> all(static_cast<std::size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    expert = backend->make_communicator("expert", all, rendezvous);
    alone = backend->make_communicator("alone", std::vector<int>{rank}, rendezvous);
  }
  Job job;
  Site site;
  RoleContext context;
  PluginRegistry plugins;
  ParameterTable table;
  Placement placement;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Communicator> expert, alone;
};

constexpr int slots = 2;  // microbatches in flight, as the role is told

// One rank's part of a case.
class RankLayer {
 public:
  RankLayer(Bench& bench, std::unique_ptr<Experts> experts, const LayerCase& c, std::int64_t first, std::int64_t count,
            const LayerHooks& hooks, RankReport& report)
      : bench_(bench),
        hooks_(hooks),
        case_(c),
        first_(first),
        count_(count),
        report_(report),
        communicator_(*bench.expert, report.collectives, hooks),
        start_{*bench.backend, bench.table,  bench.placement, coordinates(bench.context.mesh, bench.context.rank),
               *bench.alone,   *bench.alone, *bench.alone,    communicator_,
               *bench.alone,   *bench.alone},
        owned_(std::move(experts)),
        experts_(*owned_) {
    const std::int64_t most = std::max(c.most, *std::max_element(c.tokens.begin(), c.tokens.end()));
    const bool alone = bench.context.mesh.expert == 1;
    sizes_ = {alone ? std::max(most, c.all()) : most, c.hidden,   c.experts, c.k, bench.context.mesh.expert,
              alone ? 0 : bench.context.rank,         c.recompute};
    experts_.use(bench.backend->operators());
    Arena& memory = device().memory();
    for (const PlanLine& line : experts_.plan(sizes_)) {
      if (line.bytes > 0) report.planned[line.purpose] += line.bytes;
    }
    experts_.start({start_, sizes_, c.layers, slots});
    for (const Arena::Line& line : memory.ledger()) {
      if (line.bytes > 0) report.in_use[line.purpose] += line.bytes;
    }
    reserve();
  }

  // Forwards of all layers, then their backwards.
  void run(std::vector<LayerResult>& results, std::mutex& mutex) {
    mine_.resize(static_cast<std::size_t>(case_.layers));
    for (int layer = 0; layer < case_.layers; ++layer) data_.push_back(make_data(case_, layer));
    report_.forward_seconds = timed([&] {
      for (int layer = 0; layer < case_.layers; ++layer) forward(layer, data_[layer], mine_[layer]);
    });
    report_.backward_seconds = timed([&] {
      for (int layer = case_.layers - 1; layer >= 0; --layer) backward(layer, data_[layer], mine_[layer]);
    });
    report_.traffic = experts_.traffic();
    std::lock_guard lock(mutex);
    for (int layer = 0; layer < case_.layers; ++layer) {
      const auto put = [&](Floats& all, const Floats& part, std::int64_t at) {
        std::copy(part.begin(), part.end(), all.begin() + at);
      };
      put(results[layer].y, mine_[layer].y, first_ * case_.hidden);
      put(results[layer].dx, mine_[layer].dx, first_ * case_.hidden);
      put(results[layer].dweights, mine_[layer].dweights, first_ * case_.k);
      put(results[layer].gradients, mine_[layer].gradients, sizes_.local().first * per_expert());
    }
  }

 private:
  Device& device() { return bench_.backend->device(); }
  Stream& compute() { return device().stream(Resource::compute); }
  std::int64_t per_expert() const { return 3 * case_.hidden * case_.width; }
  GroupedMlp::Sizes mlp_sizes() const {
    return {experts_.capacity(sizes_), case_.hidden, case_.width, sizes_.local().count};
  }

  // As the decoder keeps them: all chunks of all layers, or two in turns and one with recompute. Filled with NaN.
  void reserve() {
    const int layers = case_.recompute ? 1 : case_.layers;
    const int chunks = experts_.chunks();
    const auto allocate = [&](std::size_t bytes, const char* what) {
      Buffer buffer = device().memory().allocate(bytes, what);
      if (bytes) std::memset(buffer.data(), 0xff, bytes);
      return buffer;
    };
    RegionCutter dispatched, computed;
    cut_dispatched(dispatched, nullptr);
    cut_mlp(computed);
    for (int layer = 0; layer < layers; ++layer) {
      saved_.push_back(allocate(experts_.saved(sizes_), "test: layer"));
      for (int c = 0; c < (case_.recompute ? std::min(chunks, 2) : chunks); ++c) {
        dispatched_.push_back(allocate(dispatched.used(), "test: rows"));
      }
      for (int c = 0; c < (case_.recompute ? 1 : chunks); ++c) {
        computed_.push_back(allocate(computed.used(), "test: computed"));
      }
    }
    const std::size_t rows = static_cast<std::size_t>(experts_.capacity(sizes_) * case_.hidden) * sizeof(float);
    outputs_ = allocate(rows, "test: outputs");
    d_rows_ = allocate(rows, "test: gradients");
    row_weights_ = allocate(static_cast<std::size_t>(experts_.capacity(sizes_)) * sizeof(float), "test: gradients");
    d_row_weights_ = allocate(static_cast<std::size_t>(experts_.capacity(sizes_)) * sizeof(float), "test: gradients");
    workspace_ =
        allocate(std::max(experts_.workspace(sizes_), bench_.backend->operators().grouped_mlp->workspace(mlp_sizes())),
                 "test: workspace");
  }
  static Region region(const Buffer& buffer) { return {buffer.data(), buffer.bytes()}; }
  void cut_dispatched(RegionCutter& cutter, ExpertChunk* chunk) {
    ExpertChunk unused{};
    ExpertChunk& out = chunk ? *chunk : unused;
    out.rows = cutter.tensor(DType::f32, {experts_.capacity(sizes_), case_.hidden});
    out.offsets = cutter.tensor(DType::i32, {sizes_.local().count + 1});
    out.saved = cutter.region(experts_.chunk_saved(sizes_));
  }
  Region cut_mlp(RegionCutter& cutter) {
    return cutter.region(bench_.backend->operators().grouped_mlp->saved(mlp_sizes()));
  }

  template <class Work>
  double timed(const Work& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    compute().synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  struct Chunk {
    ExpertChunk at;
    Region mlp;
  };
  Chunk chunk(int layer, int index) {
    const int chunks = experts_.chunks();
    Chunk c{};
    c.at.index = index;
    RegionCutter dispatched(region(dispatched_[case_.recompute ? index % 2 : layer * chunks + index]));
    RegionCutter computed(region(computed_[case_.recompute ? 0 : layer * chunks + index]));
    cut_dispatched(dispatched, &c.at);
    c.mlp = cut_mlp(computed);
    c.at.outputs = c.at.d_weighted = outputs_.view(DType::f32, c.at.rows.shape);
    c.at.d_rows = d_rows_.view(DType::f32, c.at.rows.shape);
    c.at.row_weights = row_weights_.view(DType::f32, {c.at.rows.shape[0]});
    c.at.d_row_weights = d_row_weights_.view(DType::f32, {c.at.rows.shape[0]});
    return c;
  }
  ExpertExchange exchange(int layer, LayerData& data) {
    ExpertExchange a{};
    a.layer = layer;
    a.slot = layer % slots;
    const Shape by_token{count_, case_.hidden}, choices{count_, case_.k};
    const auto part = [&](auto& all, Shape shape) { return view_of(all.data() + first_ * shape[1], shape); };
    a.routing = {part(data.indices, choices), part(data.weights, choices), {}};
    a.x = part(data.x, by_token);
    a.dy = part(data.dy, by_token);
    a.saved = region(saved_[case_.recompute ? 0 : layer]);
    a.workspace = region(workspace_);
    return a;
  }
  GroupedMlp::Weights matrices(Floats& all, std::int64_t first) const {
    const std::int64_t block = case_.hidden * case_.width;
    const Shape wide{case_.width, case_.hidden}, tall{case_.hidden, case_.width};
    float* at = all.data() + first * per_expert();
    return {{view_of(at, wide), per_expert()},
            {view_of(at + block, wide), per_expert()},
            {view_of(at + 2 * block, tall), per_expert()}};
  }

  void forward(int layer, LayerData& data, LayerResult& result) {
    result.y.assign(static_cast<std::size_t>(count_ * case_.hidden), std::nanf(""));
    ExpertExchange a = exchange(layer, data);
    a.y = view_of(result.y.data(), a.x.shape);
    const GroupedMlp::Weights weights = matrices(data.matrices, sizes_.local().first);
    const int chunks = experts_.chunks();
    experts_.begin(compute(), a);
    experts_.dispatch_begin(compute(), a, chunk(layer, 0).at);
    for (int c = 0; c < chunks; ++c) {
      const Chunk now = chunk(layer, c);
      if (c + 1 < chunks) experts_.dispatch_begin(compute(), a, chunk(layer, c + 1).at);
      experts_.dispatch_end(compute(), a, now.at);
      if (hooks_.mlp_begins) hooks_.mlp_begins(bench_.context.rank, compute(), c, false);
      mlp_forward(now, weights, now.at.outputs);
      experts_.combine_begin(compute(), a, now.at);
      if (c > 0) experts_.combine_end(compute(), a, chunk(layer, c - 1).at);
    }
    experts_.combine_end(compute(), a, chunk(layer, chunks - 1).at);
  }
  void mlp_forward(const Chunk& c, const GroupedMlp::Weights& weights, const TensorView& outputs) {
    bench_.backend->operators().grouped_mlp->forward(
        compute(), {c.at.rows, c.at.offsets, weights, outputs, c.mlp, region(workspace_)});
  }

  void backward(int layer, LayerData& data, LayerResult& result) {
    result.dx.assign(static_cast<std::size_t>(count_ * case_.hidden), std::nanf(""));
    result.dweights.assign(static_cast<std::size_t>(count_ * case_.k), std::nanf(""));
    result.gradients.assign(static_cast<std::size_t>(sizes_.local().count * per_expert()), 0.0f);
    ExpertExchange a = exchange(layer, data);
    a.again = true;
    a.dispatch_again = case_.recompute;
    a.dx = view_of(result.dx.data(), a.x.shape);
    a.dweights = view_of(result.dweights.data(), a.routing.weights.shape);
    const GroupedMlp::Weights weights = matrices(data.matrices, sizes_.local().first);
    const GroupedMlp::Weights gradients = matrices(result.gradients, 0);
    const int chunks = experts_.chunks();
    const auto send = [&](int c) {
      const Chunk next = chunk(layer, c);
      if (case_.recompute) experts_.dispatch_begin(compute(), a, next.at);
      experts_.combine_backward_begin(compute(), a, next.at);
    };
    experts_.begin(compute(), a);
    send(0);
    for (int c = 0; c < chunks; ++c) {
      const Chunk now = chunk(layer, c);
      if (c + 1 < chunks) send(c + 1);
      if (case_.recompute) {
        experts_.dispatch_end(compute(), a, now.at);
        mlp_forward(now, weights, {});
      }
      experts_.combine_backward_end(compute(), a, now.at);
      if (hooks_.mlp_begins) hooks_.mlp_begins(bench_.context.rank, compute(), c, true);
      bench_.backend->operators().grouped_mlp->backward(compute(), {now.at.rows,
                                                                    now.at.offsets,
                                                                    weights,
                                                                    now.at.d_weighted,
                                                                    now.at.d_rows,
                                                                    gradients,
                                                                    now.mlp,
                                                                    region(workspace_),
                                                                    {},
                                                                    now.at.row_weights,
                                                                    now.at.d_row_weights});
      experts_.dispatch_backward_begin(compute(), a, now.at);
      if (c > 0) experts_.dispatch_backward_end(compute(), a, chunk(layer, c - 1).at);
    }
    experts_.dispatch_backward_end(compute(), a, chunk(layer, chunks - 1).at);
  }

  Bench& bench_;
  const LayerHooks& hooks_;
  const LayerCase& case_;
  std::int64_t first_, count_;
  RankReport& report_;
  NotingCommunicator communicator_;
  StartContext start_;
  ExpertSizes sizes_{};
  std::vector<LayerData> data_;
  std::vector<LayerResult> mine_;
  std::vector<Buffer> saved_, dispatched_, computed_;
  Buffer outputs_, d_rows_, row_weights_, d_row_weights_, workspace_;
  const std::unique_ptr<Experts> owned_;  // ends before what it was started with
  Experts& experts_;
};

LayerResult empty_result(const LayerCase& c) {
  const auto nans = [](std::int64_t n) { return Floats(static_cast<std::size_t>(n), std::nanf("")); };
  return {nans(c.all() * c.hidden), nans(c.all() * c.hidden), nans(c.all() * c.k),
          nans(c.experts * 3 * c.hidden * c.width)};
}

void run_rank(Bench& bench, std::unique_ptr<Experts> experts, const LayerCase& c, std::int64_t first,
              std::int64_t count, const LayerHooks& hooks, LayerRun& run, std::mutex& mutex) {
  RankReport& report = run.ranks[static_cast<std::size_t>(bench.context.rank)];
  const std::uint64_t reads = bench.backend->device().reads();
  RankLayer(bench, std::move(experts), c, first, count, hooks, report).run(run.layers, mutex);
  report.reads = bench.backend->device().reads() - reads;
}

}  // namespace

std::int64_t LayerCase::all() const { return std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0}); }

LayerData make_data(const LayerCase& c, int layer) {
  std::mt19937 engine(c.seed * 1000 + static_cast<unsigned>(layer));
  std::uniform_real_distribution<float> uniform(-1, 1);
  const auto floats = [&](std::int64_t n) {
    Floats values(static_cast<std::size_t>(n));
    for (float& value : values) value = uniform(engine);
    return values;
  };
  LayerData data;
  data.x = floats(c.all() * c.hidden);
  data.dy = floats(c.all() * c.hidden);
  data.weights = floats(c.all() * c.k);
  for (float& weight : data.weights) weight = std::abs(weight) + 0.01f;
  data.matrices = floats(c.experts * 3 * c.hidden * c.width);
  std::vector<std::int32_t> order(static_cast<std::size_t>(c.experts));
  for (std::int64_t t = 0; t < c.all(); ++t) {
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), engine);
    if (c.groups > 1) {  // those of the chosen groups first
      const std::int64_t size = c.experts / c.groups, wanted = (c.k + size - 1) / size;
      const std::int32_t start = order[0];
      std::stable_partition(order.begin(), order.end(),
                            [&](std::int32_t e) { return (e / size + c.groups - start / size) % c.groups < wanted; });
    }
    if (c.skew > 0) std::iter_swap(order.begin(), std::find(order.begin(), order.end(), c.skew - 1));
    data.indices.insert(data.indices.end(), order.begin(), order.begin() + c.k);
  }
  return data;
}

std::vector<LayerRun> sweep(const Sweep& what) {
  std::vector<LayerCase> cases;
  std::vector<LayerRun> runs(static_cast<std::size_t>(what.cases));
  for (int i = 0; i < what.cases; ++i) {
    LayerCase c = what.each(i);
    if (!what.config) c.tokens = {c.all()};
    runs[static_cast<std::size_t>(i)].layers.assign(static_cast<std::size_t>(c.layers), empty_result(c));
    runs[static_cast<std::size_t>(i)].ranks.resize(static_cast<std::size_t>(what.ranks));
    cases.push_back(std::move(c));
  }
  std::mutex mutex;
  run_rank_threads(what.ranks, std::chrono::seconds(60), [&](int rank, Rendezvous& rendezvous) {
    Bench bench(rank, what.ranks, rendezvous);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const LayerCase& c = cases[i];
      const std::int64_t first = std::accumulate(c.tokens.begin(), c.tokens.begin() + rank, std::int64_t{0});
      std::unique_ptr<Experts> experts;
      if (what.config) {
        experts = make_ep(what.config(static_cast<int>(i)), bench.context);
      } else {
        experts = std::make_unique<LocalExperts>();
      }
      run_rank(bench, std::move(experts), c, first, c.tokens.at(static_cast<std::size_t>(rank)), what.hooks, runs[i],
               mutex);
    }
    rendezvous.exchange("test done", {}, "");
  });
  return runs;
}

LayerRun run_ep(const LayerCase& c, const std::string& config) {
  return sweep({static_cast<int>(c.tokens.size()), 1, [&](int) { return c; }, [&](int) { return config; }})[0];
}

LayerRun run_local(const LayerCase& c) {
  return sweep({1, 1, [&](int) { return c; }, {}})[0];
}

}  // namespace ananke::testing
