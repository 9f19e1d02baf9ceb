#include "plugins/backend_cuda/operators/cudnn_attention.h"

// The library is opened when the program runs: backend_cuda loads and works where there is none.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/log.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // the headers want it; set once by library()
}

namespace ananke::cuda {
namespace {

namespace fe = cudnn_frontend;
using Graph = fe::graph::Graph;
using TensorPointer = std::shared_ptr<fe::graph::Tensor_attributes>;
using Sizes = Attention::Sizes;

constexpr std::size_t oldest = 90600;  // ragged statistics, shared keys, workspace by tokens

enum Uid : std::int64_t {
  q_id = 1,
  k_id,
  v_id,
  o_id,
  log_sum_id,
  d_o_id,
  dq_id,
  dk_id,
  dv_id,
  query_length_id,
  key_length_id,
  first_offset_id = 100  // of tensor id: first_offset_id + id
};

bool load_library() {
  for (const char* name : {"libcudnn.so.9", ANANKE_CUDNN_LIBRARY}) {
    if (*name != '\0') fe::cudnn_dlhandle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (fe::cudnn_dlhandle) return true;
  }
  return false;
}

bool library() {
  static const bool found = load_library();
  return found;
}

void check(const fe::error_t& result, const char* what) {
  if (result.is_good()) return;
  fail(ErrorKind::config, "cuDNN cannot {}: {}", what, result.err_msg);
}

// One pass for one number of documents.
struct Plan {
  std::shared_ptr<Graph> graph;
  std::int64_t batch = 0;
};

// Builds the graphs. Tensors are [batch, heads, longest, width] with rows of tokens one after the other.
class Builder {
 public:
  Builder(const Sizes& n, std::int64_t batch, bool deterministic)
      : n_(n), batch_(batch), deterministic_(deterministic), graph_(std::make_shared<Graph>()) {
    graph_->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  std::shared_ptr<Graph> forward() {
    const TensorPointer q = rows(q_id, n_.query_heads), k = rows(k_id, n_.key_heads), v = rows(v_id, n_.key_heads);
    auto options = fe::graph::SDPA_attributes()
                       .set_name("attention")
                       .set_generate_stats(true)
                       .set_attn_scale(scale())
                       .set_causal_mask(true)
                       .set_padding_mask(true)
                       .set_seq_len_q(lengths(query_length_id))
                       .set_seq_len_kv(lengths(key_length_id));
    auto [o, log_sum] = graph_->sdpa(q, k, v, options);
    o->set_output(true);
    shape(*o, o_id, n_.query_heads, n_.head_dim);
    log_sum->set_output(true).set_data_type(fe::DataType_t::FLOAT);
    shape(*log_sum, log_sum_id, n_.query_heads, 1);
    return graph_;
  }

  std::shared_ptr<Graph> backward() {
    const TensorPointer q = rows(q_id, n_.query_heads), k = rows(k_id, n_.key_heads), v = rows(v_id, n_.key_heads);
    const TensorPointer o = rows(o_id, n_.query_heads), d_o = rows(d_o_id, n_.query_heads);
    auto log_sum = graph_->tensor(fe::graph::Tensor_attributes().set_data_type(fe::DataType_t::FLOAT));
    shape(*log_sum, log_sum_id, n_.query_heads, 1);
    auto options = fe::graph::SDPA_backward_attributes()
                       .set_name("attention_backward")
                       .set_attn_scale(scale())
                       .set_causal_mask(true)
                       .set_padding_mask(true)
                       .set_seq_len_q(lengths(query_length_id))
                       .set_seq_len_kv(lengths(key_length_id))
                       .set_max_total_seq_len_q(n_.tokens)
                       .set_max_total_seq_len_kv(n_.tokens)
                       .set_deterministic_algorithm(deterministic_);
    auto [dq, dk, dv] = graph_->sdpa_backward(q, k, v, o, d_o, log_sum, options);
    for (const TensorPointer& gradient : {dq, dk, dv}) gradient->set_output(true);
    shape(*dq, dq_id, n_.query_heads, n_.head_dim);
    shape(*dk, dk_id, n_.key_heads, n_.head_dim);
    shape(*dv, dv_id, n_.key_heads, n_.head_dim);
    return graph_;
  }

 private:
  float scale() const { return static_cast<float>(1 / std::sqrt(static_cast<double>(n_.head_dim))); }
  TensorPointer numbers(std::int64_t id, std::int64_t count) {
    return graph_->tensor(fe::graph::Tensor_attributes()
                              .set_uid(id)
                              .set_dim({count, 1, 1, 1})
                              .set_stride({1, 1, 1, 1})
                              .set_data_type(fe::DataType_t::INT32));
  }
  TensorPointer lengths(Uid id) { return numbers(id, batch_); }
  void shape(fe::graph::Tensor_attributes& tensor, Uid id, std::int64_t heads, std::int64_t width) {
    tensor.set_uid(id)
        .set_dim({batch_, heads, n_.longest, width})
        .set_stride({n_.longest * heads * width, width, heads * width, 1})
        .set_ragged_offset(numbers(first_offset_id + id, batch_ + 1));
  }
  TensorPointer rows(Uid id, std::int64_t heads) {
    auto tensor = graph_->tensor(fe::graph::Tensor_attributes().set_data_type(fe::DataType_t::BFLOAT16));
    shape(*tensor, id, heads, n_.head_dim);
    return tensor;
  }

  const Sizes& n_;
  const std::int64_t batch_;
  const bool deterministic_;
  std::shared_ptr<Graph> graph_;
};

// `most`: bytes of workspace that are planned.
void build(Graph& graph, cudnnHandle_t handle, const Sizes& n, std::int64_t batch, std::size_t most, const char* pass) {
  const std::string what = fmt::format(
      "plan the {} pass of attention of {} documents of up to {} tokens, {} heads sharing {}, of {} elements", pass,
      batch, n.longest, n.query_heads, n.key_heads, n.head_dim);
  check(graph.validate(), what.c_str());
  check(graph.build_operation_graph(handle), what.c_str());
  check(graph.create_execution_plans({fe::HeurMode_t::A}), what.c_str());
  check(graph.check_support(), what.c_str());
  check(graph.build_plans(), what.c_str());
  std::int64_t bytes = 0;
  check(graph.get_workspace_size(bytes), what.c_str());
  if (bytes < 0 || static_cast<std::size_t>(bytes) > most) {
    fail(ErrorKind::config, "cuDNN wants {} bytes of workspace to {}; {} are planned for it", bytes, what, most);
  }
}

// What plans were built for: sizes that a call may have at most, and the plans by ascending numbers of documents.
struct PlanSet {
  Sizes sizes;
  std::vector<Plan> forward, backward;

  bool covers(const Sizes& n) const {
    return n.query_heads == sizes.query_heads && n.key_heads == sizes.key_heads && n.head_dim == sizes.head_dim &&
           n.tokens <= sizes.tokens && n.longest <= sizes.longest &&
           (n.segments <= sizes.segments || sizes.segments >= CudnnAttention::most_documents);
  }
};

class Cudnn final : public CudnnAttention {
 public:
  Cudnn(cudnnHandle_t handle, bool deterministic) : handle_(handle), deterministic_(deterministic) {}
  ~Cudnn() override {
    sets_.clear();
    fe::detail::destroy_handle(handle_);
  }
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;

  std::string version() const override {
    const std::size_t number = fe::detail::get_backend_version();
    return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
  }

  Sizes planned(const Sizes& n) override {
    std::lock_guard lock(mutex_);
    if (const PlanSet* set = find(n)) return set->sizes;
    sets_.push_back(make(n));
    return sets_.back().sizes;
  }

  bool takes(const Sizes& n) override {
    std::lock_guard lock(mutex_);
    const PlanSet* set = find(n);
    return n.segments > 0 && set && n.segments <= set->forward.back().batch;
  }

  void forward(const RaggedCall& call, const Tensors& t) override {
    run(call, &PlanSet::forward, common(call.scratch, t), "put the forward pass of attention on the stream");
  }

  void backward(const RaggedCall& call, const Tensors& t) override {
    Pointers pointers = common(call.scratch, t);
    add(pointers, d_o_id, t.d_o, call.scratch.q);
    add(pointers, dq_id, t.dq, call.scratch.q);
    add(pointers, dk_id, t.dk, call.scratch.k);
    add(pointers, dv_id, t.dv, call.scratch.k);
    run(call, &PlanSet::backward, std::move(pointers), "put the backward pass of attention on the stream");
  }

 private:
  using Pointers = std::unordered_map<std::int64_t, void*>;

  static void add(Pointers& pointers, Uid id, const void* data, std::int32_t* offsets) {
    pointers[id] = const_cast<void*>(data);
    pointers[first_offset_id + id] = offsets;
  }

  static Pointers common(const RaggedScratch& scratch, const Tensors& t) {
    Pointers pointers{{query_length_id, scratch.lengths}, {key_length_id, scratch.lengths}};
    add(pointers, q_id, t.q, scratch.q);
    add(pointers, k_id, t.k, scratch.k);
    add(pointers, v_id, t.v, scratch.k);
    add(pointers, o_id, t.o, scratch.q);
    add(pointers, log_sum_id, t.log_sum, scratch.log_sum);
    return pointers;
  }

  void run(const RaggedCall& call, std::vector<Plan> PlanSet::*pass, Pointers pointers, const char* what) {
    std::lock_guard lock(mutex_);
    const PlanSet* set = find(call.n);
    ANANKE_CHECK(set != nullptr, "attention of {} tokens was not planned", call.n.tokens);
    const std::vector<Plan>& plans = set->*pass;
    const Plan& plan =
        *std::find_if(plans.begin(), plans.end(), [&](const Plan& one) { return one.batch >= call.n.segments; });
    fill_ragged(call, plan.batch);
    if (fe::detail::set_stream(handle_, call.stream) != CUDNN_STATUS_SUCCESS) {
      fail(ErrorKind::internal, "cuDNN does not take the stream to {}", what);
    }
    const auto result = plan.graph->execute(handle_, pointers, call.scratch.workspace);
    if (!result.is_good()) fail(ErrorKind::internal, "cuDNN cannot {}: {}", what, result.err_msg);
  }

  // Of those that cover n, the one of the fewest tokens: then a call never takes more memory than the sizes that were
  // planned before it do.
  const PlanSet* find(const Sizes& n) const {
    const PlanSet* best = nullptr;
    for (const PlanSet& set : sets_) {
      if (set.covers(n) && (!best || set.sizes.tokens < best->sizes.tokens)) best = &set;
    }
    return best;
  }
  void add_plans(PlanSet& set, std::int64_t batch) {
    if (deterministic_ && pair_bytes(set.sizes, batch) > most_pair_bytes) {
      fail(ErrorKind::config,
           "a deterministic backward pass of {} documents of up to {} tokens keeps {} bytes of pairs", batch,
           set.sizes.longest, pair_bytes(set.sizes, batch));
    }
    Carve carve;
    const std::size_t most = layout(carve, set.sizes, deterministic_).workspace_bytes;
    Plan forward{Builder(set.sizes, batch, deterministic_).forward(), batch},
        backward{Builder(set.sizes, batch, deterministic_).backward(), batch};
    build(*forward.graph, handle_, set.sizes, batch, most, "forward");
    build(*backward.graph, handle_, set.sizes, batch, most, "backward");
    set.forward.push_back(std::move(forward));
    set.backward.push_back(std::move(backward));
  }

  PlanSet make(const Sizes& n) {
    PlanSet set{n, {}, {}};
    set.sizes.tokens = planned_tokens(n.tokens);
    set.sizes.longest = planned_tokens(n.longest);
    if (set.sizes.tokens * n.query_heads * n.head_dim > std::numeric_limits<std::int32_t>::max()) {
      fail(ErrorKind::config,
           "{} tokens of {} heads of {} are more elements than 32-bit offsets reach; plan fewer "
           "tokens a microbatch",
           n.tokens, n.query_heads, n.head_dim);
    }
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t batch = 1;; batch *= batch_step) {
      try {
        add_plans(set, batch);
      } catch (const Error& error) {
        if (batch == 1) throw;
        log_info("attention of more than {} documents: the backend's own kernels: {}", batch / batch_step,
                 error.what());
        break;
      }
      if (batch >= std::min(n.segments, most_documents)) break;
    }
    set.sizes.segments = std::max(n.segments, set.forward.back().batch);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    log_info(
        "attention by cuDNN {}: {} plans for {} tokens, documents of up to {}, {} heads sharing {} of {}, made in "
        "{:.1f} s",
        version(), 2 * set.forward.size(), set.sizes.tokens, set.sizes.longest, n.query_heads, n.key_heads, n.head_dim,
        took.count());
    return set;
  }

  const cudnnHandle_t handle_;
  const bool deterministic_;
  std::mutex mutex_;
  std::vector<PlanSet> sets_;
};

}  // namespace

std::unique_ptr<CudnnAttention> CudnnAttention::open(std::string& reason, bool deterministic) {
  if (!library()) {
    reason = "libcudnn.so.9 was not found; put its folder into LD_LIBRARY_PATH";
    return nullptr;
  }
  const std::size_t version = fe::detail::get_backend_version();
  if (version < oldest) {
    reason = fmt::format("cuDNN 9.6 or newer is needed, and {}.{} was found", version / 10000, version / 100 % 100);
    return nullptr;
  }
  cudnnHandle_t handle = nullptr;
  if (const cudnnStatus_t status = fe::detail::create_handle(&handle); status != CUDNN_STATUS_SUCCESS) {
    reason = fmt::format("cuDNN cannot be started: {}", fe::detail::get_error_string(status));
    return nullptr;
  }
  return std::make_unique<Cudnn>(handle, deterministic);
}

}  // namespace ananke::cuda
