// A backend, its device, communicators and operators, each call by name.
#include <fmt/ranges.h>

#include <optional>

#include "runtime/engine/guarded.h"
#include "runtime/engine/guarded_roles.h"

namespace ananke {
namespace {

// One operator of the backend. The backend owns it.
template <class Operator>
class GuardedOperator : public Operator {
 public:
  GuardedOperator(const PluginGuard& guard, Operator& inner) : guard_(guard), inner_(inner) {}

 protected:
  template <class Work>
  decltype(auto) call(const char* method, Work&& work) const {
    const TraceSpan span(TraceKind::operation, method);
    return guard_.call(method, std::forward<Work>(work));
  }
  template <class Work>
  std::size_t bytes(std::string_view method, Work&& work) const {
    const std::size_t size = guard_.call(method, std::forward<Work>(work));
    guard_.require(size <= most_plugin_bytes, method, "{} bytes make no sense; at most {}", size, most_plugin_bytes);
    return size;
  }
  const PluginGuard& guard_;
  Operator& inner_;
};

class GuardedEmbedding final : public GuardedOperator<Embedding> {
 public:
  using GuardedOperator::GuardedOperator;
  void forward(Stream& stream, const Forward& a) override {
    call("embedding.forward", [&] { inner_.forward(stream, a); });
  }
  void backward(Stream& stream, const Backward& a) override {
    call("embedding.backward", [&] { inner_.backward(stream, a); });
  }
};

class GuardedAddRmsNorm final : public GuardedOperator<AddRmsNorm> {
 public:
  using GuardedOperator::GuardedOperator;
  std::size_t saved(const Sizes& s) const override {
    return bytes("add_rms_norm.saved", [&] { return inner_.saved(s); });
  }
  std::size_t workspace(const Sizes& s) const override {
    return bytes("add_rms_norm.workspace", [&] { return inner_.workspace(s); });
  }
  void forward(Stream& stream, const Forward& a) override {
    call("add_rms_norm.forward", [&] { inner_.forward(stream, a); });
  }
  void backward(Stream& stream, const Backward& a) override {
    call("add_rms_norm.backward", [&] { inner_.backward(stream, a); });
  }
};

class GuardedLinear final : public GuardedOperator<Linear> {
 public:
  using GuardedOperator::GuardedOperator;
  void forward(Stream& stream, const Forward& a) override {
    call("linear.forward", [&] { inner_.forward(stream, a); });
  }
  void backward(Stream& stream, const Backward& a) override {
    call("linear.backward", [&] { inner_.backward(stream, a); });
  }
};

class GuardedAttention final : public GuardedOperator<Attention> {
 public:
  using GuardedOperator::GuardedOperator;
  std::size_t saved(const Sizes& s) const override {
    return bytes("attention.saved", [&] { return inner_.saved(s); });
  }
  std::size_t workspace(const Sizes& s) const override {
    return bytes("attention.workspace", [&] { return inner_.workspace(s); });
  }
  void forward(Stream& stream, const Forward& a) override {
    call("attention.forward", [&] { inner_.forward(stream, a); });
  }
  void backward(Stream& stream, const Backward& a) override {
    call("attention.backward", [&] { inner_.backward(stream, a); });
  }
};

class GuardedRouter final : public GuardedOperator<Router> {
 public:
  using GuardedOperator::GuardedOperator;
  std::size_t saved(const Sizes& s) const override {
    return bytes("router.saved", [&] { return inner_.saved(s); });
  }
  std::size_t workspace(const Sizes& s) const override {
    return bytes("router.workspace", [&] { return inner_.workspace(s); });
  }
  void forward(Stream& stream, const Forward& a) override {
    call("router.forward", [&] { inner_.forward(stream, a); });
  }
  void backward(Stream& stream, const Backward& a) override {
    call("router.backward", [&] { inner_.backward(stream, a); });
  }
};

class GuardedPermute final : public GuardedOperator<Permute> {
 public:
  using GuardedOperator::GuardedOperator;
  std::size_t workspace(std::int64_t slots, std::int64_t experts) const override {
    return bytes("permute.workspace", [&] { return inner_.workspace(slots, experts); });
  }
  void forward(Stream& stream, const Forward& a, Region workspace) override {
    call("permute.forward", [&] { inner_.forward(stream, a, workspace); });
  }
  void backward(Stream& stream, const Backward& a) override {
    call("permute.backward", [&] { inner_.backward(stream, a); });
  }
  void combine_forward(Stream& stream, const CombineForward& a) override {
    call("permute.combine_forward", [&] { inner_.combine_forward(stream, a); });
  }
  void combine_backward(Stream& stream, const CombineBackward& a) override {
    call("permute.combine_backward", [&] { inner_.combine_backward(stream, a); });
  }
};

class GuardedGroupedMlp final : public GuardedOperator<GroupedMlp> {
 public:
  using GuardedOperator::GuardedOperator;
  std::size_t saved(const Sizes& s) const override {
    return bytes("grouped_mlp.saved", [&] { return inner_.saved(s); });
  }
  std::size_t workspace(const Sizes& s) const override {
    return bytes("grouped_mlp.workspace", [&] { return inner_.workspace(s); });
  }
  void forward(Stream& stream, const Forward& a) override {
    call("grouped_mlp.forward", [&] { inner_.forward(stream, a); });
  }
  void backward(Stream& stream, const Backward& a) override {
    call("grouped_mlp.backward", [&] { inner_.backward(stream, a); });
  }
};

class GuardedHeadLoss final : public GuardedOperator<HeadLoss> {
 public:
  using GuardedOperator::GuardedOperator;
  std::size_t workspace(const Sizes& s) const override {
    return bytes("head_loss.workspace", [&] { return inner_.workspace(s); });
  }
  void forward(Stream& stream, const Forward& a) override {
    call("head_loss.forward", [&] { inner_.forward(stream, a); });
  }
  void forward_backward(Stream& stream, const ForwardBackward& a) override {
    call("head_loss.forward_backward", [&] { inner_.forward_backward(stream, a); });
  }
};

class GuardedElementwise final : public GuardedOperator<Elementwise> {
 public:
  using GuardedOperator::GuardedOperator;
  void add(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& y) override {
    call("elementwise.add", [&] { inner_.add(stream, a, b, y); });
  }
  void square_sum(Stream& stream, const TensorView& x, const TensorView& sum) override {
    call("elementwise.square_sum", [&] { inner_.square_sum(stream, x, sum); });
  }
  void add_in_order(Stream& stream, const TensorView& terms, const TensorView& sum) override {
    call("elementwise.add_in_order", [&] { inner_.add_in_order(stream, terms, sum); });
  }
  void reciprocal(Stream& stream, const TensorView& x, const TensorView& y) override {
    call("elementwise.reciprocal", [&] { inner_.reciprocal(stream, x, y); });
  }
  void clip(Stream& stream, const Clip& a) override {
    call("elementwise.clip", [&] { inner_.clip(stream, a); });
  }
  void hash(Stream& stream, const TensorView& x, const TensorView& hash) override {
    call("elementwise.hash", [&] { inner_.hash(stream, x, hash); });
  }
};

class GuardedAdamW final : public GuardedOperator<AdamWUpdate> {
 public:
  using GuardedOperator::GuardedOperator;
  void update(Stream& stream, const Arguments& a) override {
    call("adamw.update", [&] { inner_.update(stream, a); });
  }
};

class GuardedRouterBalance final : public GuardedOperator<RouterBalance> {
 public:
  using GuardedOperator::GuardedOperator;
  void collect(Stream& stream, const Collect& a) override {
    call("router_balance.collect", [&] { inner_.collect(stream, a); });
  }
  void factors(Stream& stream, const Factors& a) override {
    call("router_balance.factors", [&] { inner_.factors(stream, a); });
  }
  void load(Stream& stream, const Load& a) override {
    call("router_balance.load", [&] { inner_.load(stream, a); });
  }
  void update_bias(Stream& stream, const UpdateBias& a) override {
    call("router_balance.update_bias", [&] { inner_.update_bias(stream, a); });
  }
  void summarise(Stream& stream, const Summarise& a) override {
    call("router_balance.summarise", [&] { inner_.summarise(stream, a); });
  }
};

class GuardedExchange final : public GuardedOperator<Exchange> {
 public:
  using GuardedOperator::GuardedOperator;
  std::size_t workspace(std::int64_t local_experts) const override {
    return bytes("exchange.workspace", [&] { return inner_.workspace(local_experts); });
  }
  void plan(Stream& stream, const Plan& a) override {
    call("exchange.plan", [&] { inner_.plan(stream, a); });
  }
  void pack(Stream& stream, const Pack& a) override {
    call("exchange.pack", [&] { inner_.pack(stream, a); });
  }
  void collect(Stream& stream, const Collect& a) override {
    call("exchange.collect", [&] { inner_.collect(stream, a); });
  }
  void expand(Stream& stream, const Expand& a) override {
    call("exchange.expand", [&] { inner_.expand(stream, a); });
  }
  void combine(Stream& stream, const Combine& a) override {
    call("exchange.combine", [&] { inner_.combine(stream, a); });
  }
  void combine_backward(Stream& stream, const CombineBackward& a) override {
    call("exchange.combine_backward", [&] { inner_.combine_backward(stream, a); });
  }
  void expand_backward(Stream& stream, const ExpandBackward& a) override {
    call("exchange.expand_backward", [&] { inner_.expand_backward(stream, a); });
  }
};

class GuardedMomentum final : public GuardedOperator<Momentum> {
 public:
  using GuardedOperator::GuardedOperator;
  void accumulate(Stream& stream, const Accumulate& a) override {
    call("momentum.accumulate", [&] { inner_.accumulate(stream, a); });
  }
  void apply(Stream& stream, const Apply& a) override {
    call("momentum.apply", [&] { inner_.apply(stream, a); });
  }
};

class GuardedNewtonSchulz final : public GuardedOperator<NewtonSchulz> {
 public:
  using GuardedOperator::GuardedOperator;
  std::size_t workspace(const Sizes& s) const override {
    return bytes("newton_schulz.workspace", [&] { return inner_.workspace(s); });
  }
  void run(Stream& stream, const Arguments& a) override {
    call("newton_schulz.run", [&] { inner_.run(stream, a); });
  }
};

class GuardedWire final : public GuardedOperator<Wire> {
 public:
  using GuardedOperator::GuardedOperator;
  void to_bf16(Stream& stream, const ToBf16& a) override {
    call("wire.to_bf16", [&] { inner_.to_bf16(stream, a); });
  }
  void from_bf16(Stream& stream, const TensorView& x, const TensorView& y) override {
    call("wire.from_bf16", [&] { inner_.from_bf16(stream, x, y); });
  }
  void landing_sum(Stream& stream, const LandingSum& a) override {
    call("wire.landing_sum", [&] { inner_.landing_sum(stream, a); });
  }
  void quantise(Stream& stream, const TensorView& pieces, const TensorView& values, const TensorView& bytes) override {
    call("wire.quantise", [&] { inner_.quantise(stream, pieces, values, bytes); });
  }
  void dequantise(Stream& stream, const TensorView& pieces, const TensorView& bytes,
                  const TensorView& values) override {
    call("wire.dequantise", [&] { inner_.dequantise(stream, pieces, bytes, values); });
  }
};

static_assert(sizeof(OperatorSet) == 15 * sizeof(void*),
              "an operator of OperatorSet needs its wrapper above and below");
struct GuardedOperators {
  GuardedOperators(const PluginGuard& guard, const OperatorSet& inner)
      : embedding(guard, *inner.embedding),
        add_rms_norm(guard, *inner.add_rms_norm),
        linear(guard, *inner.linear),
        attention(guard, *inner.attention),
        router(guard, *inner.router),
        router_balance(guard, *inner.router_balance),
        permute(guard, *inner.permute),
        exchange(guard, *inner.exchange),
        grouped_mlp(guard, *inner.grouped_mlp),
        head_loss(guard, *inner.head_loss),
        elementwise(guard, *inner.elementwise),
        adamw(guard, *inner.adamw),
        momentum(guard, *inner.momentum),
        newton_schulz(guard, *inner.newton_schulz),
        wire(guard, *inner.wire) {}

  GuardedEmbedding embedding;
  GuardedAddRmsNorm add_rms_norm;
  GuardedLinear linear;
  GuardedAttention attention;
  GuardedRouter router;
  GuardedRouterBalance router_balance;
  GuardedPermute permute;
  GuardedExchange exchange;
  GuardedGroupedMlp grouped_mlp;
  GuardedHeadLoss head_loss;
  GuardedElementwise elementwise;
  GuardedAdamW adamw;
  GuardedMomentum momentum;
  GuardedNewtonSchulz newton_schulz;
  GuardedWire wire;
  const OperatorSet set = {.embedding = &embedding,
                           .add_rms_norm = &add_rms_norm,
                           .linear = &linear,
                           .attention = &attention,
                           .router = &router,
                           .router_balance = &router_balance,
                           .permute = &permute,
                           .exchange = &exchange,
                           .grouped_mlp = &grouped_mlp,
                           .head_loss = &head_loss,
                           .elementwise = &elementwise,
                           .adamw = &adamw,
                           .momentum = &momentum,
                           .newton_schulz = &newton_schulz,
                           .wire = &wire};
};

// Streams and events stay the backend's own: what is given back to it must be of its classes. Exceptions and crashes of
// work on them are the work's.
class GuardedDevice final : public Device {
 public:
  GuardedDevice(const PluginGuard& guard, Device& inner) : guard_(guard), inner_(inner) {}
  std::string description() const override {
    return guard_.call("device.description", [&] { return inner_.description(); });
  }
  int numa_node() const override {
    return guard_.call("device.numa_node", [&] { return inner_.numa_node(); });
  }
  Arena& memory() override {
    return guard_.call("device.memory", [&]() -> Arena& { return inner_.memory(); });
  }
  Arena& host_memory() override {
    return guard_.call("device.host_memory", [&]() -> Arena& { return inner_.host_memory(); });
  }
  Stream& stream(Resource resource) override {
    return guard_.call("device.stream", [&]() -> Stream& { return inner_.stream(resource); });
  }
  std::unique_ptr<Event> make_event() override {
    auto event = guard_.call("device.make_event", [&] { return inner_.make_event(); });
    guard_.require(event != nullptr, "device.make_event", "it makes none");
    return event;
  }
  std::unique_ptr<Event> make_timer() override {
    auto event = guard_.call("device.make_timer", [&] { return inner_.make_timer(); });
    guard_.require(event != nullptr, "device.make_timer", "it makes none");
    return event;
  }
  void copy(Stream& stream, void* to, const void* from, std::size_t bytes) override {
    const TraceSpan span(TraceKind::copy, [&] { return TraceText{"copy", {{"bytes", bytes}}}; });
    guard_.call("device.copy", [&] { inner_.copy(stream, to, from, bytes); });
  }
  void zero(Stream& stream, void* to, std::size_t bytes) override {
    const TraceSpan span(TraceKind::copy, [&] { return TraceText{"zero", {{"bytes", bytes}}}; });
    guard_.call("device.zero", [&] { inner_.zero(stream, to, bytes); });
  }
  void read(const TensorView& from, void* to) override {
    const TraceSpan span(TraceKind::copy, [&] { return TraceText{"read", {{"bytes", from.bytes()}}}; });
    guard_.call("device.read", [&] { inner_.read(from, to); });
  }
  std::uint64_t reads() const override {
    return guard_.call("device.reads", [&] { return inner_.reads(); });
  }
  MemoryUse memory_use() override {
    return guard_.call("device.memory_use", [&] { return inner_.memory_use(); });
  }
  std::optional<double> busy_seconds() override {
    return guard_.call("device.busy_seconds", [&] { return inner_.busy_seconds(); });
  }

 private:
  const PluginGuard& guard_;
  Device& inner_;
};

class GuardedCommunicator final : public Communicator {
 public:
  GuardedCommunicator(PluginGuard guard, std::unique_ptr<Communicator> inner, const std::string& name)
      : guard_(std::move(guard)), inner_(std::move(inner)), name_(name) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void all_gather(Stream& stream, const TensorView& send, const TensorView& receive) override {
    const TraceSpan span = collective("all_gather", send.bytes() * others());
    guard_.call(all_gather_, [&] { inner_->all_gather(stream, send, receive); });
  }
  void reduce_scatter(Stream& stream, const TensorView& send, const TensorView& receive) override {
    const TraceSpan span = collective("reduce_scatter", receive.bytes() * others());
    guard_.call(reduce_scatter_, [&] { inner_->reduce_scatter(stream, send, receive); });
  }
  void all_reduce(Stream& stream, const TensorView& buffer, Reduction reduction) override {
    const TraceSpan span = collective("all_reduce", 2 * buffer.bytes() * others() / (others() + 1));
    guard_.call(all_reduce_, [&] { inner_->all_reduce(stream, buffer, reduction); });
  }
  void broadcast(Stream& stream, const TensorView& buffer, int root) override {
    const TraceSpan span = collective("broadcast", root == rank() ? 0 : buffer.bytes());
    guard_.call(broadcast_, [&] { inner_->broadcast(stream, buffer, root); });
  }
  void all_to_all(Stream& stream, const TensorView& send, std::span<const std::int64_t> send_counts,
                  const TensorView& receive, std::span<const std::int64_t> receive_counts) override {
    const TraceSpan span = collective("all_to_all", received(receive.dtype, receive_counts));
    guard_.call(all_to_all_, [&] { inner_->all_to_all(stream, send, send_counts, receive, receive_counts); });
  }
  bool share(Stream& stream, const TensorView& memory) override {
    return guard_.call(share_, [&] { return inner_->share(stream, memory); });
  }
  void all_to_all_rows(Stream& stream, const RowExchange& a) override {
    const TraceSpan span(TraceKind::collective, [&] {  // how many bytes, the device alone knows
      return TraceText{"all_to_all_rows " + name_, {{"ranks", size()}}};
    });
    guard_.call(all_to_all_rows_, [&] { inner_->all_to_all_rows(stream, a); });
  }
  void sum_parts(Stream& stream, const TensorView& parts, const TensorView& sum, bool add) override {
    const TraceSpan span = collective("sum_parts", sum.bytes() / 2 * others());
    guard_.call(sum_parts_, [&] { inner_->sum_parts(stream, parts, sum, add); });
  }
  void abort() noexcept override { inner_->abort(); }

 private:
  // `bytes`: that this rank receives from others.
  TraceSpan collective(const char* what, std::size_t bytes) const {
    return {TraceKind::collective, [&] {
              return TraceText{fmt::format("{} {}", what, name_), {{"bytes", bytes}, {"ranks", size()}}};
            }};
  }
  std::size_t received(DType type, std::span<const std::int64_t> counts) const {
    std::int64_t elements = 0;
    for (int p = 0; p < static_cast<int>(counts.size()); ++p) {
      elements += p == rank() ? 0 : counts[static_cast<std::size_t>(p)];
    }
    return static_cast<std::size_t>(elements) * size_of(type);
  }
  std::size_t others() const { return static_cast<std::size_t>(size()) - 1; }

  // As calls are named: a rank that stands still is in one of them.
  std::string method(const char* what) const { return fmt::format("communicator.{} over axis {}", what, name_); }

  const PluginGuard guard_;
  std::unique_ptr<Communicator> inner_;
  const std::string name_;  // "shard"
  const std::string all_gather_ = method("all_gather"), reduce_scatter_ = method("reduce_scatter"),
                    all_reduce_ = method("all_reduce"), broadcast_ = method("broadcast"),
                    all_to_all_ = method("all_to_all"), share_ = method("share"),
                    all_to_all_rows_ = method("all_to_all_rows"), sum_parts_ = method("sum_parts");
};

class GuardedBackend final : public Guarded<Backend> {
 public:
  using Guarded::Guarded;
  bool computes_in(DType type) const override {
    return call("computes_in", [&] { return role_->computes_in(type); });
  }
  bool stores_in(DType type) const override {
    return call("stores_in", [&] { return role_->stores_in(type); });
  }
  std::string determinism() const override {
    return call("determinism", [&] { return role_->determinism(); });
  }
  bool computes_on_host() const override {
    return call("computes_on_host", [&] { return role_->computes_on_host(); });
  }
  std::vector<PlanLine> plan(std::span<const CollectiveUse> largest) const override {
    return checked("plan", call("plan", [&] { return role_->plan(largest); }));
  }
  std::vector<PlanLine> in_use() override {
    return checked("in_use", call("in_use", [&] { return role_->in_use(); }));
  }
  std::optional<DeviceRoom> room() override {
    return call("room", [&] { return role_->room(); });
  }
  Device& device() override {
    Device& device = call("device", [&]() -> Device& { return role_->device(); });
    if (!device_) device_.emplace(guard_, device);
    return *device_;
  }
  const OperatorSet& operators() override {
    if (operators_) return operators_->set;
    const OperatorSet& set = call("operators", [&]() -> const OperatorSet& { return role_->operators(); });
    const bool complete = set.embedding && set.add_rms_norm && set.linear && set.attention && set.router &&
                          set.router_balance && set.permute && set.exchange && set.grouped_mlp && set.head_loss &&
                          set.elementwise && set.adamw && set.momentum && set.newton_schulz && set.wire;
    guard_.require(complete, "operators", "some operator is missing; a backend offers every one of OperatorSet");
    return operators_.emplace(guard_, set).set;
  }
  void trace(Trace* trace) override {
    call("trace", [&] { role_->trace(trace); });
  }
  std::unique_ptr<Communicator> make_communicator(const std::string& name, std::span<const int> ranks,
                                                  Rendezvous& rendezvous) override {
    auto made = call("make_communicator", [&] { return role_->make_communicator(name, ranks, rendezvous); });
    const auto own = made ? made->rank() : -1;
    guard_.require(made && made->size() == static_cast<int>(ranks.size()) && own >= 0 && own < made->size() &&
                       ranks[static_cast<std::size_t>(own)] == rendezvous.rank(),
                   "make_communicator", "'{}' says that this is rank {} of {}, it must be the place of rank {} in [{}]",
                   name, own, made ? made->size() : 0, rendezvous.rank(), fmt::join(ranks, ", "));
    return std::make_unique<GuardedCommunicator>(guard_, std::move(made), name);
  }

 private:
  std::optional<GuardedDevice> device_;
  std::optional<GuardedOperators> operators_;
};

}  // namespace

std::unique_ptr<Backend> guarded(std::unique_ptr<Backend> role, PluginGuard guard, const RoleContext&) {
  return std::make_unique<GuardedBackend>(std::move(role), std::move(guard));
}

}  // namespace ananke
