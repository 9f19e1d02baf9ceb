#include "tests/bench/timed_backend.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "runtime/engine/inner_role.h"

namespace ananke::testing {

void MeetingTimes::come(const std::string& meeting, double time) {
  std::lock_guard lock(mutex_);
  double& latest = latest_[meeting];
  latest = std::max(latest, time);
}

double MeetingTimes::latest(const std::string& meeting) {
  std::lock_guard lock(mutex_);
  return latest_.at(meeting);
}

class TimedBackend::TimedEvent final : public Event {
 public:
  explicit TimedEvent(std::unique_ptr<Event> inner) : inner(std::move(inner)) {}
  bool reached() const override { return inner->reached(); }
  void synchronize() const override { inner->synchronize(); }
  const std::unique_ptr<Event> inner;
  std::shared_ptr<double> time;  // written by the stream that it was recorded on
};

// A stream of the host backend and its time, which only its own work touches.
class TimedBackend::TimedStream final : public Stream {
 public:
  TimedStream(TimedBackend& backend, Resource resource, Stream& inner)
      : backend(backend), resource(resource), inner(inner), time_(std::make_shared<double>(0)) {}

  void record(Event& event) override {
    auto& mine = dynamic_cast<TimedEvent&>(event);
    if (exact()) {
      mine.time = std::make_shared<double>(0);
      put([slot = mine.time](double& time) { *slot = time; });
    }
    inner.record(*mine.inner);
  }
  void wait(const Event& event) override {
    const auto& mine = dynamic_cast<const TimedEvent&>(event);
    inner.wait(*mine.inner);
    if (exact() && mine.time) put([slot = mine.time](double& time) { time = std::max(time, *slot); });
  }
  void run_on_host(std::function<void()> work) override { inner.run_on_host(std::move(work)); }
  void synchronize() override {
    inner.synchronize();
    backend.host_time_ = std::max(backend.host_time_, *time_);
  }
  void spend(double seconds) {
    if (seconds <= 0) return;
    if (exact()) {
      put([seconds](double& time) { time += seconds; });
    } else {
      inner.run_on_host([seconds] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); });
    }
  }
  bool exact() const { return backend.setup_.clock == ClockKind::exact; }
  // Work on the stream's time, which is at least that of the host who put it there.
  template <class Work>
  void put(Work work) {
    inner.run_on_host([time = time_, issued = backend.host_time_, work = std::move(work)] {
      *time = std::max(*time, issued);
      work(*time);
    });
  }

  TimedBackend& backend;
  const Resource resource;
  Stream& inner;

 private:
  const std::shared_ptr<double> time_;
};

Stream& TimedBackend::host_stream(Stream& stream) { return dynamic_cast<TimedStream&>(stream).inner; }
void TimedBackend::spend(Stream& stream, double seconds) { dynamic_cast<TimedStream&>(stream).spend(seconds); }

class TimedBackend::TimedDevice final : public Device {
 public:
  TimedDevice(TimedBackend& backend, Device& inner) : inner_(inner) {
    for (int r = 0; r < resource_count; ++r) {
      const auto resource = static_cast<Resource>(r);
      streams_[static_cast<std::size_t>(r)] = std::make_unique<TimedStream>(backend, resource, inner.stream(resource));
    }
  }
  std::string description() const override { return inner_.description(); }
  Arena& memory() override { return inner_.memory(); }
  Arena& host_memory() override { return inner_.host_memory(); }
  Stream& stream(Resource resource) override { return *streams_[static_cast<std::size_t>(resource)]; }
  std::unique_ptr<Event> make_event() override { return std::make_unique<TimedEvent>(inner_.make_event()); }
  void copy(Stream& stream, void* to, const void* from, std::size_t bytes) override {
    inner_.copy(host_stream(stream), to, from, bytes);
  }
  void zero(Stream& stream, void* to, std::size_t bytes) override { inner_.zero(host_stream(stream), to, bytes); }
  void read(const TensorView& from, void* to) override {
    stream(Resource::compute).synchronize();
    inner_.read(from, to);
  }
  std::uint64_t reads() const override { return inner_.reads(); }

 private:
  Device& inner_;
  std::array<std::unique_ptr<TimedStream>, resource_count> streams_;
};

// Every operator on the host backend's own stream; some take their time first.
struct TimedBackend::Operators {
  template <class Operator>
  struct Passed : Operator {
    explicit Passed(Operator* inner, double forward = 0) : inner(*inner), forward_time(forward) {}
    Operator& inner;
    const double forward_time;
  };
#define ANANKE_RUN_TIMED(METHOD, ARGUMENTS, SECONDS)         \
  void METHOD(Stream& stream, const ARGUMENTS& a) override { \
    spend(stream, SECONDS);                                  \
    inner.METHOD(host_stream(stream), a);                    \
  }
#define ANANKE_RUN(METHOD, ARGUMENTS) ANANKE_RUN_TIMED(METHOD, ARGUMENTS, 0)
#define ANANKE_SIZE(METHOD) \
  std::size_t METHOD(const Sizes& s) const override { return inner.METHOD(s); }

  struct PassedEmbedding final : Passed<Embedding> {
    using Passed::Passed;
    ANANKE_RUN(forward, Forward)
    ANANKE_RUN(backward, Backward)
  } embedding;
  struct PassedNorm final : Passed<AddRmsNorm> {
    using Passed::Passed;
    ANANKE_SIZE(saved)
    ANANKE_SIZE(workspace)
    ANANKE_RUN(forward, Forward)
    ANANKE_RUN(backward, Backward)
  } norm;
  struct PassedLinear final : Passed<Linear> {
    using Passed::Passed;
    ANANKE_RUN(forward, Forward)
    ANANKE_RUN(backward, Backward)
  } linear;
  struct PassedAttention final : Passed<Attention> {
    using Passed::Passed;
    ANANKE_SIZE(saved)
    ANANKE_SIZE(workspace)
    ANANKE_RUN_TIMED(forward, Forward, forward_time)
    ANANKE_RUN_TIMED(backward, Backward, 2 * forward_time)
  } attention;
  struct PassedRouter final : Passed<Router> {
    using Passed::Passed;
    ANANKE_SIZE(saved)
    ANANKE_SIZE(workspace)
    ANANKE_RUN(forward, Forward)
    ANANKE_RUN(backward, Backward)
  } router;
  struct PassedBalance final : Passed<RouterBalance> {
    using Passed::Passed;
    ANANKE_RUN(collect, Collect)
    ANANKE_RUN(factors, Factors)
    ANANKE_RUN(load, Load)
    ANANKE_RUN(update_bias, UpdateBias)
    ANANKE_RUN(summarise, Summarise)
  } balance;
  struct PassedPermute final : Passed<Permute> {
    using Passed::Passed;
    std::size_t workspace(std::int64_t slots, std::int64_t experts) const override {
      return inner.workspace(slots, experts);
    }
    void forward(Stream& stream, const Forward& a, Region workspace) override {
      inner.forward(host_stream(stream), a, workspace);
    }
    ANANKE_RUN(backward, Backward)
    ANANKE_RUN(combine_forward, CombineForward)
    ANANKE_RUN(combine_backward, CombineBackward)
  } permute;
  struct PassedExchange final : Passed<Exchange> {
    using Passed::Passed;
    std::size_t workspace(std::int64_t experts) const override { return inner.workspace(experts); }
    ANANKE_RUN(plan, Plan)
    ANANKE_RUN(pack, Pack)
    ANANKE_RUN(collect, Collect)
    ANANKE_RUN(expand, Expand)
    ANANKE_RUN(combine, Combine)
    ANANKE_RUN(combine_backward, CombineBackward)
    ANANKE_RUN(expand_backward, ExpandBackward)
  } exchange;
  struct PassedMlp final : Passed<GroupedMlp> {
    using Passed::Passed;
    ANANKE_SIZE(saved)
    ANANKE_SIZE(workspace)
    ANANKE_RUN_TIMED(forward, Forward, forward_time)
    ANANKE_RUN_TIMED(backward, Backward, 2 * forward_time)
  } mlp;
  struct PassedHead final : Passed<HeadLoss> {
    using Passed::Passed;
    ANANKE_SIZE(workspace)
    ANANKE_RUN(forward, Forward)
    ANANKE_RUN_TIMED(forward_backward, ForwardBackward, forward_time)
  } head;
  struct PassedElementwise final : Passed<Elementwise> {
    using Passed::Passed;
    void add(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& y) override {
      inner.add(host_stream(stream), a, b, y);
    }
    void square_sum(Stream& stream, const TensorView& x, const TensorView& sum) override {
      inner.square_sum(host_stream(stream), x, sum);
    }
    void add_in_order(Stream& stream, const TensorView& terms, const TensorView& sum) override {
      inner.add_in_order(host_stream(stream), terms, sum);
    }
    void reciprocal(Stream& stream, const TensorView& x, const TensorView& y) override {
      inner.reciprocal(host_stream(stream), x, y);
    }
    ANANKE_RUN(clip, Clip)
    void hash(Stream& stream, const TensorView& x, const TensorView& hash) override {
      inner.hash(host_stream(stream), x, hash);
    }
  } elementwise;
  struct PassedAdamW final : Passed<AdamWUpdate> {
    using Passed::Passed;
    ANANKE_RUN(update, Arguments)
  } adamw;
  struct PassedMomentum final : Passed<Momentum> {
    using Passed::Passed;
    ANANKE_RUN(accumulate, Accumulate)
    ANANKE_RUN(apply, Apply)
  } momentum;
  struct PassedNewtonSchulz final : Passed<NewtonSchulz> {
    using Passed::Passed;
    ANANKE_SIZE(workspace)
    ANANKE_RUN_TIMED(run, Arguments, forward_time)
  } newton_schulz;
  struct PassedWire final : Passed<Wire> {
    using Passed::Passed;
    ANANKE_RUN(to_bf16, ToBf16)
    void from_bf16(Stream& stream, const TensorView& x, const TensorView& y) override {
      inner.from_bf16(host_stream(stream), x, y);
    }
    ANANKE_RUN(landing_sum, LandingSum)
    void quantise(Stream& stream, const TensorView& pieces, const TensorView& values,
                  const TensorView& bytes) override {
      inner.quantise(host_stream(stream), pieces, values, bytes);
    }
    void dequantise(Stream& stream, const TensorView& pieces, const TensorView& bytes,
                    const TensorView& values) override {
      inner.dequantise(host_stream(stream), pieces, bytes, values);
    }
  } wire;
#undef ANANKE_SIZE
#undef ANANKE_RUN
#undef ANANKE_RUN_TIMED

  Operators(const OperatorSet& inner, const OperatorTimes& times)
      : embedding(inner.embedding),
        norm(inner.add_rms_norm),
        linear(inner.linear),
        attention(inner.attention, times.attention),
        router(inner.router),
        balance(inner.router_balance),
        permute(inner.permute),
        exchange(inner.exchange),
        mlp(inner.grouped_mlp, times.mlp),
        head(inner.head_loss, times.head),
        elementwise(inner.elementwise),
        adamw(inner.adamw),
        momentum(inner.momentum),
        newton_schulz(inner.newton_schulz, times.newton_schulz),
        wire(inner.wire) {}
  const OperatorSet set = {.embedding = &embedding,
                           .add_rms_norm = &norm,
                           .linear = &linear,
                           .attention = &attention,
                           .router = &router,
                           .router_balance = &balance,
                           .permute = &permute,
                           .exchange = &exchange,
                           .grouped_mlp = &mlp,
                           .head_loss = &head,
                           .elementwise = &elementwise,
                           .adamw = &adamw,
                           .momentum = &momentum,
                           .newton_schulz = &newton_schulz,
                           .wire = &wire};
};

// Counts what really exchanges something. Such a collective ends, by the exact clock, its delay after the last rank
// came.
class TimedBackend::TimedCommunicator final : public Communicator {
 public:
  TimedCommunicator(TimedBackend& backend, std::unique_ptr<Communicator> inner, std::string group, int milliseconds)
      : backend_(backend), inner_(std::move(inner)), group_(std::move(group)), delay_(1e-3 * milliseconds) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void all_gather(Stream& stream, const TensorView& send, const TensorView& receive) override {
    run(stream, send.bytes() > 0, [&](Stream& inner) { inner_->all_gather(inner, send, receive); });
  }
  void reduce_scatter(Stream& stream, const TensorView& send, const TensorView& receive) override {
    run(stream, receive.bytes() > 0, [&](Stream& inner) { inner_->reduce_scatter(inner, send, receive); });
  }
  void all_reduce(Stream& stream, const TensorView& buffer, Reduction reduction) override {
    run(stream, buffer.bytes() > 0, [&](Stream& inner) { inner_->all_reduce(inner, buffer, reduction); });
  }
  void broadcast(Stream& stream, const TensorView& buffer, int root) override {
    run(stream, buffer.bytes() > 0, [&](Stream& inner) { inner_->broadcast(inner, buffer, root); });
  }
  void all_to_all(Stream& stream, const TensorView& send, std::span<const std::int64_t> send_counts,
                  const TensorView& receive, std::span<const std::int64_t> receive_counts) override {
    run(stream, true, [&](Stream& inner) { inner_->all_to_all(inner, send, send_counts, receive, receive_counts); });
  }
  void abort() noexcept override { inner_->abort(); }

 private:
  template <class Collective>
  void run(Stream& stream, bool any, Collective collective) {
    auto& timed = dynamic_cast<TimedStream&>(stream);
    const bool counts = any && size() > 1;
    if (counts) count(timed);
    if (!counts || !timed.exact()) return collective(timed.inner);
    // All ranks come before any of them is through.
    const std::string meeting = fmt::format("{} {}", group_, number_++);
    MeetingTimes* meetings = backend_.setup_.meetings;
    timed.put([=](double& time) { meetings->come(meeting, time); });
    collective(timed.inner);
    timed.put([=, delay = delay_](double& time) { time = meetings->latest(meeting) + delay; });
  }
  void count(TimedStream& stream) {
    int& count = backend_.counts_[static_cast<std::size_t>(stream.resource)];
    if (stream.resource == Resource::network && backend_.setup_.before_network) {
      backend_.setup_.before_network(stream, count);
    }
    ++count;
  }
  TimedBackend& backend_;
  const std::unique_ptr<Communicator> inner_;
  const std::string group_;
  const double delay_;  // seconds
  std::uint64_t number_ = 0;
};

TimedBackend::TimedBackend(const RoleContext& context, TimedSetup setup) : setup_(std::move(setup)) {
  const auto make = [&](int milliseconds) {
    return make_inner<Backend>(
        "backend_host", context,
        fmt::format("threads: 1 communication_delay: '{}ms'", setup_.clock == ClockKind::sleeping ? milliseconds : 0));
  };
  network_ = make(setup_.network);
  nvlink_ = make(setup_.nvlink);
}

// Streams end with the host backend that owns them; what is on them may hold operators of it alone.
TimedBackend::~TimedBackend() = default;

Device& TimedBackend::device() {
  if (!device_) device_ = std::make_unique<TimedDevice>(*this, network_->device());
  return *device_;
}

const OperatorSet& TimedBackend::operators() {
  if (!operators_) operators_ = std::make_unique<Operators>(network_->operators(), setup_.operators);
  return operators_->set;
}

std::unique_ptr<Communicator> TimedBackend::make_communicator(const std::string& name, std::span<const int> ranks,
                                                              Rendezvous& rendezvous) {
  const bool fast = name == "expert" || name == "node";
  return std::make_unique<TimedCommunicator>(
      *this, (fast ? nvlink_ : network_)->make_communicator(name, ranks, rendezvous),
      fmt::format("{} {}", name, fmt::join(ranks, ",")), fast ? setup_.nvlink : setup_.network);
}

double TimedBackend::now() const {
  if (setup_.clock == ClockKind::exact) return host_time_;
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace ananke::testing
