// The experts of one MoE layer: chunk by chunk, the next chunk travelling while this one is computed. runtime/roles/
// experts.h draws the order of the calls.
//
// Without recompute every chunk's rows and results stay from forward to backward. With it two buffers of rows take
// turns, one chunk's results are there at a time, and backward makes each chunk's again before it uses them.
#include "runtime/model/decoder_internal.h"

namespace ananke {
namespace {

// The `index`-th of equal pieces.
Region piece(const Region& all, std::size_t bytes, int index) {
  if (!all.data) return {nullptr, bytes};
  return {static_cast<std::byte*>(all.data) + bytes * static_cast<std::size_t>(index), bytes};
}

}  // namespace

GroupedMlp::Sizes Decoder::expert_mlp_sizes() const {
  return {capacity_, hidden_, expert_width_, sizes_.local().count};
}

Decoder::Dispatched Decoder::cut_dispatched(RegionCutter& cutter) const {
  Dispatched dispatched;
  dispatched.rows = cutter.tensor(sizes_.compute, {capacity_, hidden_});
  dispatched.offsets = cutter.tensor(DType::i32, {sizes_.local().count + 1});
  dispatched.saved = cutter.region(chunk_saved_);
  return dispatched;
}

Decoder::Computed Decoder::cut_computed(RegionCutter& cutter) const {
  Computed computed;
  computed.outputs = cutter.tensor(sizes_.compute, {capacity_, hidden_});
  computed.mlp = cutter.region(operators_.grouped_mlp->saved(expert_mlp_sizes()));
  return computed;
}

void Decoder::cut_chunks(RegionCutter& cutter, Saved& saved) const {
  const auto chunks = static_cast<std::size_t>(chunks_);
  RegionCutter one_dispatched, one_computed;
  cut_dispatched(one_dispatched);
  cut_computed(one_computed);
  saved.exchange = cutter.region(experts_.saved(sizes_));
  saved.dispatched =
      cutter.region(one_dispatched.used() * (sizes_.recompute ? std::min<std::size_t>(chunks, 2) : chunks));
  saved.computed = cutter.region(one_computed.used() * (sizes_.recompute ? 1 : chunks));
}

Decoder::Chunk Decoder::chunk(const Saved& saved, const Scratch& scratch, int index) const {
  RegionCutter size_of_dispatched, size_of_computed;
  cut_dispatched(size_of_dispatched);
  cut_computed(size_of_computed);
  RegionCutter at_dispatched(piece(saved.dispatched, size_of_dispatched.used(), sizes_.recompute ? index % 2 : index));
  RegionCutter at_computed(piece(saved.computed, size_of_computed.used(), sizes_.recompute ? 0 : index));
  const Dispatched dispatched = cut_dispatched(at_dispatched);
  const Computed computed = cut_computed(at_computed);
  return {{index, dispatched.rows, dispatched.offsets, dispatched.saved, computed.outputs, scratch.d_outputs,
           scratch.d_rows},
          computed.mlp};
}

ExpertExchange Decoder::exchange(const Block& block, const BlockIo& io, const Saved& saved,
                                 const Scratch& scratch) const {
  ExpertExchange exchange{};
  exchange.layer = block.layer;
  exchange.slot = io.slot;
  exchange.routing = {io.routing.indices, saved.routing_weights, saved.routing_counts};
  exchange.x = saved.n2;
  exchange.saved = saved.exchange;
  exchange.workspace = scratch.operators;
  return exchange;
}

void Decoder::experts_forward(Stream& stream, const Block& block, const BlockIo& io, const Saved& saved,
                              const Scratch& scratch) const {
  ExpertExchange exchange = this->exchange(block, io, saved, scratch);
  exchange.y = scratch.a;
  experts_.begin(stream, exchange);
  experts_.dispatch_begin(stream, exchange, chunk(saved, scratch, 0).exchange);
  if (io.experts_begin) io.experts_begin();
  const GroupedMlp::Weights weights = mlp_weights(block, io, false);
  for (int c = 0; c < chunks_; ++c) {
    const Chunk now = chunk(saved, scratch, c);
    if (c + 1 < chunks_) experts_.dispatch_begin(stream, exchange, chunk(saved, scratch, c + 1).exchange);
    experts_.dispatch_end(stream, exchange, now.exchange);
    operators_.grouped_mlp->forward(
        stream, {now.exchange.rows, now.exchange.offsets, weights, now.exchange.outputs, now.mlp, scratch.operators});
    experts_.combine_begin(stream, exchange, now.exchange);
    if (c > 0) experts_.combine_end(stream, exchange, chunk(saved, scratch, c - 1).exchange);
  }
  experts_.combine_end(stream, exchange, chunk(saved, scratch, chunks_ - 1).exchange);
}

void Decoder::experts_backward(Stream& stream, const Block& block, const BlockIo& io, const Saved& saved,
                               const Scratch& scratch, const TensorView& dy) const {
  const GroupedMlp::Weights weights = mlp_weights(block, io, false), gradient = mlp_weights(block, io, true);
  ExpertExchange exchange = this->exchange(block, io, saved, scratch);
  exchange.again = true;
  exchange.dy = dy;
  exchange.dx = scratch.b;
  exchange.dweights = scratch.d_weights;
  const auto send = [&](int c) {
    const Chunk next = chunk(saved, scratch, c);
    if (sizes_.recompute) experts_.dispatch_begin(stream, exchange, next.exchange);
    experts_.combine_backward_begin(stream, exchange, next.exchange);
  };
  experts_.begin(stream, exchange);
  send(0);
  for (int c = 0; c < chunks_; ++c) {
    const Chunk now = chunk(saved, scratch, c);
    const ExpertChunk& at = now.exchange;
    if (c + 1 < chunks_) send(c + 1);
    if (sizes_.recompute) {
      experts_.dispatch_end(stream, exchange, at);
      operators_.grouped_mlp->forward(stream, {at.rows, at.offsets, weights, at.outputs, now.mlp, scratch.operators});
    }
    experts_.combine_backward_end(stream, exchange, at);
    operators_.grouped_mlp->backward(
        stream, {at.rows, at.offsets, weights, at.d_outputs, at.d_rows, gradient, now.mlp, scratch.operators});
    experts_.dispatch_backward_begin(stream, exchange, at);
    if (c > 0) experts_.dispatch_backward_end(stream, exchange, chunk(saved, scratch, c - 1).exchange);
  }
  if (io.experts_done) io.experts_done();
  experts_.dispatch_backward_end(stream, exchange, chunk(saved, scratch, chunks_ - 1).exchange);
}

}  // namespace ananke
