#include "runtime/engine/pass.h"

#include <algorithm>

#include "ananke/model.pb.h"
#include "runtime/base/error.h"
#include "runtime/model/rope.h"
#include "runtime/model/router_rule.h"
#include "runtime/telemetry/trace.h"

namespace ananke {
namespace {

std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

TraceText text_of(const Item& item, const Block& block, int number) {
  return {name_of(item, block), {{"item", number}, {"microbatch", item.microbatch}}};
}

}  // namespace

ExpertSizes Pass::expert_sizes(const PassParts& parts, const PassLimits& limits) {
  return {.tokens = limits.tokens,
          .hidden = parts.model.hidden_size(),
          .experts = parts.model.num_experts(),
          .k = parts.model.num_experts_per_tok(),
          .ranks = parts.placement.mesh().expert,
          .rank = parts.at.expert,
          .recompute = limits.recompute.any(LayerOperator::dispatch),
          .compute = parts.compute};
}

struct Pass::Memory {
  std::size_t rope, input, kept, made_again, workspace, gradients, routing;
  std::vector<std::size_t> kept_offset, kept_bytes;

  Memory(const PassParts& parts, const PassLimits& limits) {
    const Model& model = parts.model;
    // Sizes alone are asked of it, so it needs no cache.
    const Decoder decoder(model, parts.table, parts.placement, parts.at, parts.backend.operators(), parts.experts,
                          expert_sizes(parts, limits), limits.recompute, router_rule(model), {}, {});
    const auto hidden_bytes = static_cast<std::size_t>(limits.tokens) * model.hidden_size() * size_of(parts.compute);
    const auto slots = static_cast<std::size_t>(limits.microbatches_per_gather);
    rope = aligned(static_cast<std::size_t>(limits.positions) * model.head_dim() / 2 * sizeof(float)) * 2;
    input = aligned(hidden_bytes);
    workspace = decoder.workspace_bytes(limits.tokens, limits.tokens, limits.longest);
    gradients = input * slots;
    routing = aligned(static_cast<std::size_t>(limits.tokens) * model.num_experts_per_tok() * sizeof(std::int32_t)) *
              static_cast<std::size_t>(limits.microbatches) * model.num_hidden_layers();
    // What is kept, every block and slot has of its own; what is made again, all share.
    kept = made_again = 0;
    for (const Block& block : parts.table.blocks()) {
      const Decoder::SavedBytes bytes = decoder.saved_bytes(block, limits.tokens, limits.tokens, limits.longest);
      kept_offset.push_back(kept);
      kept_bytes.push_back(bytes.kept);
      kept += bytes.kept * slots;
      made_again = std::max(made_again, bytes.made_again);
    }
  }
};

Pass::Pass(const PassParts& parts, const PassLimits& limits, RouterBalancing& routers)
    : parts_(parts),
      limits_(limits),
      routers_(routers),
      hidden_(parts.model.hidden_size()),
      k_(parts.model.num_experts_per_tok()),
      slots_(limits.microbatches_per_gather),
      compute_(parts.backend.device().stream(Resource::compute)) {
  const Memory sizes(parts, limits);
  Device& device = parts.backend.device();
  Arena& memory = device.memory();
  rope_ = memory.allocate(sizes.rope, "rope cache");
  kept_ = memory.allocate(sizes.kept, "saved activations");
  made_again_ = memory.allocate(sizes.made_again, "activations of one block");
  workspace_ = memory.allocate(sizes.workspace, "workspace");
  gradients_ = memory.allocate(sizes.gradients, "activation gradients");
  routing_ = memory.allocate(sizes.routing, "routing");
  kept_offset_ = sizes.kept_offset;
  kept_bytes_ = sizes.kept_bytes;
  parts.activations.start(device, static_cast<int>(parts.table.blocks().size()), slots_, sizes.input);

  const Model& model = parts.model;
  const RopeCache cache = make_rope_cache(limits.positions, model.head_dim(), model.rope_theta());
  const Shape shape{limits.positions, model.head_dim() / 2};
  const TensorView cosine = rope_.view(DType::f32, shape), sine = rope_.view(DType::f32, shape, sizes.rope / 2);
  Buffer staging = device.host_memory().allocate(sizes.rope, "rope cache (host)");
  std::copy(cache.cosine.begin(), cache.cosine.end(), staging.view(DType::f32, shape).as<float>());
  std::copy(cache.sine.begin(), cache.sine.end(), staging.view(DType::f32, shape, sizes.rope / 2).as<float>());
  device.copy(compute_, rope_.data(), staging.data(), sizes.rope);
  compute_.synchronize();
  decoder_ = std::make_unique<Decoder>(model, parts.table, parts.placement, parts.at, parts.backend.operators(),
                                       parts.experts, expert_sizes(parts, limits), limits.recompute,
                                       router_rule(model, limits.forced_balance), cosine, sine);
  const std::vector<Block>& blocks = parts.table.blocks();
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    if (blocks[b].moe) last_moe_ = static_cast<int>(b);
  }
}

std::vector<PlanLine> Pass::plan(const PassParts& parts, const PassLimits& limits) {
  const Memory sizes(parts, limits);
  std::vector<PlanLine> lines = {{"rope cache", Place::device, sizes.rope},
                                 {"saved activations", Place::device, sizes.kept},
                                 {"activations of one block", Place::device, sizes.made_again},
                                 {"workspace", Place::device, sizes.workspace},
                                 {"activation gradients", Place::device, sizes.gradients},
                                 {"routing", Place::device, sizes.routing},
                                 {"rope cache (host)", Place::host, sizes.rope, Lifetime::start}};
  const auto inputs = static_cast<std::int64_t>(parts.table.blocks().size()) * limits.microbatches_per_gather;
  for (PlanLine& line : parts.activations.plan(inputs, sizes.input)) lines.push_back(std::move(line));
  for (PlanLine& line : parts.experts.plan(expert_sizes(parts, limits))) lines.push_back(std::move(line));
  return lines;
}

TensorView Pass::activation(void* data, const DeviceBatch& batch) const {
  return {data, parts_.compute, Shape{batch.tokens, hidden_}};
}

Region Pass::kept(int block, int slot) const {
  const auto b = static_cast<std::size_t>(block);
  const std::size_t offset = kept_offset_[b] + kept_bytes_[b] * static_cast<std::size_t>(slot);
  return {static_cast<std::byte*>(kept_.data()) + offset, kept_bytes_[b]};
}

TensorView Pass::routing(int layer, int microbatch, std::int64_t tokens) const {
  const std::size_t one = aligned(static_cast<std::size_t>(limits_.tokens * k_) * sizeof(std::int32_t));
  const auto index = static_cast<std::size_t>(layer) * static_cast<std::size_t>(limits_.microbatches) +
                     static_cast<std::size_t>(microbatch);
  return routing_.view(DType::i32, {tokens, k_}, index * one);
}

void Pass::run(const Schedule& schedule, std::span<const DeviceBatch> batches, const Result& result) {
  for (const DeviceBatch& batch : batches) {
    ANANKE_CHECK(batch.tokens <= limits_.tokens && batch.segments.longest <= limits_.longest,
                 "a microbatch of {} tokens, longest segment {}; made for {} and {}", batch.tokens,
                 batch.segments.longest, limits_.tokens, limits_.longest);
  }
  trains_ = std::any_of(schedule.begin(), schedule.end(), [](const Item& i) { return i.phase != Phase::forward; });
  if (trains_) routers_.begin(batches, result.scale, result.router_losses);
  parts_.parameters.begin(schedule);
  parts_.activations.begin(schedule);
  if (result.gathers_begun) result.gathers_begun();
  bool gradients = false;
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    if (!gradients && schedule[i].phase != Phase::forward) {
      gradients = true;
      if (result.gradients_begin) result.gradients_begin();
    }
    run_item(schedule, i, batches, result);
  }
  parts_.parameters.finish();
}

// In the item's order (that of the collectives), handed over in the block's. A forward comes to its experts late: their
// gather runs under the attention.
void Pass::acquire(int number, const Item& item, std::span<UnitViews> views, BlockIo& io) {
  const Block& block = parts_.table.blocks()[static_cast<std::size_t>(item.block)];
  const auto acquire_one = [this, number, &block, views](int unit) {
    const auto at = std::find(block.units.begin(), block.units.end(), unit) - block.units.begin();
    views[static_cast<std::size_t>(at)] = parts_.parameters.acquire(number, unit);
  };
  for (const UnitUse& use : item.units) {
    const bool experts = parts_.table.units()[static_cast<std::size_t>(use.unit)].kind == UnitKind::experts;
    if (experts && item.phase == Phase::forward) {
      io.experts_begin = [acquire_one, unit = use.unit] { acquire_one(unit); };
    } else {
      acquire_one(use.unit);
    }
    // A backward is done with them early: their reduction runs under that of the attention.
    if (experts && item.phase == Phase::backward) {
      io.experts_done = [this, number, &item, &use] { give_back(number, item, use); };
    }
  }
}

void Pass::give_back(int number, const Item& item, const UnitUse& use) {
  if (item.phase != Phase::forward) parts_.parameters.reduce(number, use.unit);
  parts_.parameters.release(number, use.unit);
}

void Pass::run_item(const Schedule& schedule, std::size_t index, std::span<const DeviceBatch> batches,
                    const Result& result) {
  const Item& item = schedule[index];
  const int number = static_cast<int>(index);
  const Block& block = parts_.table.blocks()[static_cast<std::size_t>(item.block)];
  const DeviceBatch& batch = batches[static_cast<std::size_t>(item.microbatch)];
  const TraceSpan span(TraceKind::phase, [&] { return text_of(item, block, number); });
  if (watch_) watch_({index + 1, schedule.size(), name_of(item, block), item.microbatch});

  UnitViews views[2];
  ANANKE_CHECK(block.units.size() <= std::size(views), "a block of {} units", block.units.size());
  BlockIo io{batch,
             {views, block.units.size()},
             kept(item.block, item.microbatch % slots_),
             {made_again_.data(), made_again_.bytes()},
             {workspace_.data(), workspace_.bytes()},
             {},
             item.microbatch % slots_};
  acquire(number, item, {views, block.units.size()}, io);
  if (block.moe) io.routing = routing_decision(block, item, result, batch.tokens);
  const HeadOutput head{
      result.loss, result.scale,
      result.logits.empty() ? TensorView{} : result.logits[static_cast<std::size_t>(item.microbatch)]};
  switch (item.phase) {
    case Phase::forward:
      forward(item, io, head);
      if (trains_ && item.block == last_moe_) routers_.forwards_done(item.microbatch);
      break;
    case Phase::both: both(item, io, head); break;
    case Phase::backward: backward(item, io); break;
  }
  for (const UnitUse& use : item.units) {
    const bool experts = parts_.table.units()[static_cast<std::size_t>(use.unit)].kind == UnitKind::experts;
    if (!(experts && item.phase == Phase::backward)) give_back(number, item, use);  // theirs is done
  }
}

// Statistics are of the forward alone, so that recompute and evaluation count nothing.
RoutingDecision Pass::routing_decision(const Block& block, const Item& item, const Result& result,
                                       std::int64_t tokens) {
  RoutingDecision decision;
  decision.indices = routing(block.layer, item.microbatch, tokens);
  decision.decided = result.replay_routing;
  decision.bias = routers_.bias(block.layer);
  if (item.phase == Phase::backward) {
    decision.factors = routers_.factors(item.microbatch);
  } else if (trains_) {
    decision.statistics = routers_.statistics(block.layer, item.microbatch);
  }
  return decision;
}

void Pass::forward(const Item& item, BlockIo& io, const HeadOutput& head) {
  const Block& block = parts_.table.blocks()[static_cast<std::size_t>(item.block)];
  const int slot = item.microbatch % slots_;
  Activations& activations = parts_.activations;
  if (block.kind == BlockKind::head) {
    decoder_->head_forward(compute_, block, io, activation(activations.place(item.block, slot), io.batch), head);
    return;
  }
  const TensorView y = activation(activations.place(item.block + 1, slot), io.batch);
  if (block.kind == BlockKind::embedding) {
    decoder_->embed(compute_, io, y);
  } else {
    // The input was kept when it was made; it is still on the device.
    decoder_->layer_forward(compute_, block, io, activation(activations.place(item.block, slot), io.batch), y);
    if (trains_)
      activations.keep(item.block, slot);
    else
      activations.forget(item.block, slot);
  }
}

void Pass::both(const Item& item, BlockIo& io, const HeadOutput& head) {
  const Block& block = parts_.table.blocks()[static_cast<std::size_t>(item.block)];
  const int slot = item.microbatch % slots_;
  const std::size_t one = gradients_.bytes() / static_cast<std::size_t>(slots_);
  const TensorView x = activation(parts_.activations.place(item.block, slot), io.batch);
  const TensorView dx =
      gradients_.view(parts_.compute, {io.batch.tokens, hidden_}, one * static_cast<std::size_t>(slot));
  decoder_->head_forward_backward(compute_, block, io, x, head, dx);
}

void Pass::backward(const Item& item, BlockIo& io) {
  const Block& block = parts_.table.blocks()[static_cast<std::size_t>(item.block)];
  const int slot = item.microbatch % slots_;
  const std::size_t one = gradients_.bytes() / static_cast<std::size_t>(slots_);
  const TensorView gradient =
      gradients_.view(parts_.compute, {io.batch.tokens, hidden_}, one * static_cast<std::size_t>(slot));
  if (block.kind == BlockKind::embedding) {
    decoder_->embed_backward(compute_, io, gradient);
    return;
  }
  const TensorView x = activation(parts_.activations.take(item.block, slot), io.batch);
  io.routing.decided = true;
  {
    const TraceSpan span(TraceKind::call, "recompute");
    decoder_->layer_again(compute_, block, io, x);
  }
  decoder_->layer_backward(compute_, block, io, x, gradient);
  parts_.activations.forget(item.block, slot);
}

}  // namespace ananke
