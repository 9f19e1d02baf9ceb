// State that comes to the device and goes back, on streams that run in the most adverse order that events allow.
#include "runtime/engine/host_step.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "tests/plugins/fsdp/deferred_backend.h"

namespace ananke::testing {
namespace {

DeferredStream& deferred(Stream& stream) { return static_cast<DeferredStream&>(stream); }

// Elementwise, and different for every pass; remembers how long the parts were.
class Stub final : public Optimizer {
 public:
  explicit Stub(std::size_t states) : states_(states) {}
  OptimizerLayout layout(const Parameter&) const override { return OptimizerLayout::any_fragment; }
  double cost(const Parameter&) const override { return 1; }
  std::vector<StateTensor> states(const Parameter&) const override { return std::vector<StateTensor>(states_); }
  double learning_rate() const override { return 1; }
  void update(Stream& stream, const OperatorSet&, const OptimizerUpdate& a) override {
    ANANKE_CHECK(a.states.size() == states_, "{} states", a.states.size());
    std::vector<TensorView> states(a.states.begin(), a.states.end());
    longest = std::max(longest, a.weight.elements());
    deferred(stream).put([w = a.weight, g = a.gradient, states, first = a.begin] {
      for (std::int64_t i = 0; i < w.elements(); ++i) {
        float step = g.as<float>()[i] + static_cast<float>((first + i) % 7);
        for (const TensorView& state : states) step = state.as<float>()[i] += step;
        w.as<float>()[i] -= step;
      }
    });
  }
  void prepare(Stream& stream, const OperatorSet&, const OptimizerUpdate& a, const TensorView& to) override {
    EXPECT_FALSE(a.weight);
    std::vector<TensorView> states(a.states.begin(), a.states.end());
    deferred(stream).put([g = a.gradient, states, to] {
      for (std::int64_t i = 0; i < to.elements(); ++i) {
        float value = g.as<float>()[i];
        for (const TensorView& state : states) value = state.as<float>()[i] += value;
        to.as<float>()[i] = value;
      }
    });
  }
  void apply(Stream& stream, const OperatorSet&, const OptimizerUpdate& a, const TensorView& by) override {
    EXPECT_FALSE(a.gradient);
    EXPECT_TRUE(a.states.empty());
    deferred(stream).put([w = a.weight, by] {
      for (std::int64_t i = 0; i < by.elements(); ++i) w.as<float>()[i] -= 2 * by.as<float>()[i];
    });
  }
  std::int64_t longest = 0;

 private:
  std::size_t states_;
};

const std::int64_t sizes[] = {1, 64, 1000, 7, 128, 333, 4096, 65, 64, 64};
const Parameter parameter{"model.layers.0.self_attn.q_proj.weight", {8192, 1}, ParameterKind::matrix, 0, 0, -1};

// Parts of two optimizers, one of which has two states, the other none, one behind the other in memory of their own.
struct State {
  explicit State(Device& device) {
    const std::int64_t all = std::accumulate(std::begin(sizes), std::end(sizes), std::int64_t{0});
    memory = device.host_memory().allocate(static_cast<std::size_t>(5 * all) * sizeof(float), "state");
    const TensorView everything = memory.view(DType::f32, {5 * all});
    for (std::int64_t i = 0; i < everything.elements(); ++i) everything.as<float>()[i] = static_cast<float>(i % 97);
    std::int64_t at = 0;
    for (std::size_t i = 0; i < std::size(sizes); ++i) {
      const auto array = [&](std::int64_t which) { return everything.slice(which * all + at, sizes[i]); };
      Optimizer* optimizer = i < 6 ? &two : &none;
      parts.push_back({.parameter = &parameter,
                       .optimizer = optimizer,
                       .begin = at,
                       .weight = array(0),
                       .gradient = array(1),
                       .transfer = array(2),
                       .on_host = i != 2});
      if (i < 6) parts.back().states = {array(3), array(4)};
      at += sizes[i];
    }
  }
  std::vector<float> values() const {
    const auto* from = static_cast<const float*>(memory.data());
    return {from, from + memory.bytes() / sizeof(float)};
  }
  Stub two{2}, none{0};
  Buffer memory;
  std::vector<UpdatePart> parts;
};

std::vector<HostStep::Need> needs_of(const State& state) {
  std::vector<HostStep::Need> needs;
  for (const UpdatePart& part : state.parts) {
    if (part.on_host) needs.push_back({part.weight.elements(), part.states.size()});
  }
  return needs;
}

// As it would be without buffers, of what is on the host.
void update_in_place(State& state, DeferredBackend& backend, int steps, UpdatePass pass) {
  Stream& compute = backend.device().stream(Resource::compute);
  for (int step = 0; step < steps; ++step) {
    for (const UpdatePart& part : state.parts) {
      if (!part.on_host) continue;
      if (pass == UpdatePass::whole) {
        part.optimizer->update(compute, backend.operators(), update_of(part, pass, {}));
        continue;
      }
      part.optimizer->prepare(compute, backend.operators(), update_of(part, UpdatePass::prepare, {}), part.transfer);
      part.optimizer->apply(compute, backend.operators(), update_of(part, UpdatePass::apply, {}), part.transfer);
    }
  }
  compute.synchronize();
}

void update_through_buffers(State& state, DeferredBackend& backend, std::uint64_t bucket, int steps, UpdatePass pass) {
  const auto needs = needs_of(state);
  HostStep host(backend.device(), backend.operators(), needs, bucket);
  const HostStep::Buckets whole = host.cut(state.parts, UpdatePass::whole),
                          prepare = host.cut(state.parts, UpdatePass::prepare),
                          apply = host.cut(state.parts, UpdatePass::apply);
  const std::uint64_t peak = backend.device().memory().peak();
  for (int step = 0; step < steps; ++step) {
    host.begin();
    if (pass == UpdatePass::whole) {
      host.run(whole, pass, {});
    } else {
      host.run(prepare, UpdatePass::prepare, {});
      host.run(apply, UpdatePass::apply, {});
    }
    host.end();
  }
  backend.device().stream(Resource::compute).synchronize();
  EXPECT_EQ(backend.device().memory().peak(), peak);
}

const Resource orders[] = {Resource::compute, Resource::host_to_device, Resource::device_to_host};

TEST(HostStep, UpdatesInBuffersOfAnySizeAsItWouldInPlace) {
  for (const Resource eager : orders) {
    for (const UpdatePass pass : {UpdatePass::whole, UpdatePass::prepare}) {
      DeferredBackend wanted_on(eager);
      State wanted(wanted_on.device());
      update_in_place(wanted, wanted_on, 3, pass);
      for (const std::uint64_t bucket : {0ull, 2000ull, 10000ull, 1ull << 30}) {
        DeferredBackend backend(eager);
        State state(backend.device());
        update_through_buffers(state, backend, bucket, 3, pass);
        EXPECT_EQ(state.values(), wanted.values()) << name_of(eager) << ", bucket " << bucket;
      }
    }
  }
}

TEST(HostStep, PlansWhatItTakesAndNoMoreThanAllNeeds) {
  for (const std::uint64_t bucket : {0ull, 10000ull, 1ull << 30}) {
    DeferredBackend backend(Resource::compute);
    State state(backend.device());
    const auto needs = needs_of(state);
    const HostStep host(backend.device(), backend.operators(), needs, bucket);
    const auto plan = HostStep::plan(needs, bucket);
    ASSERT_EQ(plan.size(), 1u);
    const auto ledger = backend.device().memory().ledger();
    const auto line = std::ranges::find(ledger, plan[0].purpose, &Arena::Line::purpose);
    ASSERT_NE(line, ledger.end());
    EXPECT_EQ(line->bytes, plan[0].bytes);
    EXPECT_LT(plan[0].bytes, 3u * 5 * 4 * 8192);
  }
  EXPECT_TRUE(HostStep::plan({}, 1 << 20).empty());
}

// Parts that lie one behind the other, and states beside them, travel and are updated as one.
TEST(HostStep, TakesNeighboursTogether) {
  DeferredBackend backend(Resource::compute);
  State state(backend.device());
  const HostStep host(backend.device(), backend.operators(), needs_of(state), 1 << 30);
  const std::vector<UpdatePart> neighbours(state.parts.end() - 2, state.parts.end());  // 64 elements each
  const HostStep::Buckets buckets = host.cut(neighbours, UpdatePass::whole);
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(buckets[0].pieces.size(), 2u);
  EXPECT_EQ(buckets[0].copies.size(), 2u) << "weights, and gradients";
}

TEST(HostStep, CountsWhatTravels) {
  DeferredBackend backend(Resource::compute);
  State state(backend.device());
  std::uint64_t in = 0, out = 0;
  for (const UpdatePart& part : state.parts) {
    if (!part.on_host) continue;
    in += part.weight.bytes() * (2 + part.states.size());
    out += part.weight.bytes() * (1 + part.states.size());
  }
  HostStep host(backend.device(), backend.operators(), needs_of(state), 4096);
  host.begin();
  host.run(host.cut(state.parts, UpdatePass::whole), UpdatePass::whole, {});
  host.end();
  backend.device().stream(Resource::compute).synchronize();
  const Traffic lines = host.traffic();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].resource, Resource::host_to_device);
  EXPECT_EQ(lines[0].bytes, in);
  EXPECT_EQ(lines[1].bytes, out);
  EXPECT_LE(state.two.longest, 4096 / 16);
}

}  // namespace
}  // namespace ananke::testing
