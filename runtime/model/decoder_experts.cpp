// The experts of one MoE layer: chunk by chunk, the next chunk travelling while this one is computed. runtime/roles/
// experts.h draws the order of the calls.
//
// What is kept, every chunk has room for. Where the dispatch is made again, two buffers of rows take turns, and where
// the MLP is, one chunk's results are there at a time; backward then makes each chunk's before it uses them. Forward
// uses the same places. What the experts give is there for one chunk at a time always: no gradient needs it.
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

void Decoder::cut_chunks(SavedCutter& cutter, Saved& saved) const {
  const auto chunks = static_cast<std::size_t>(chunks_);
  const bool dispatch = cutter.again.has(LayerOperator::dispatch), mlp = cutter.again.has(LayerOperator::grouped_mlp);
  RegionCutter one;
  cut_dispatched(one);
  saved.exchange = cutter.of(LayerOperator::dispatch).region(experts_.saved(sizes_));
  saved.dispatched =
      cutter.of(LayerOperator::dispatch).region(one.used() * (dispatch ? std::min<std::size_t>(chunks, 2) : chunks));
  saved.mlp = cutter.of(LayerOperator::grouped_mlp).region(chunk_mlp_bytes() * (mlp ? 1 : chunks));
}

std::size_t Decoder::chunk_mlp_bytes() const {
  RegionCutter cutter;
  cutter.region(operators_.grouped_mlp->saved(expert_mlp_sizes()));
  return cutter.used();
}

Decoder::Chunk Decoder::chunk(const Saved& saved, const Scratch& scratch, int index) const {
  RegionCutter size_of_dispatched;
  cut_dispatched(size_of_dispatched);
  const bool dispatch = saved.again.has(LayerOperator::dispatch), mlp = saved.again.has(LayerOperator::grouped_mlp);
  RegionCutter at_dispatched(piece(saved.dispatched, size_of_dispatched.used(), dispatch ? index % 2 : index));
  const Dispatched dispatched = cut_dispatched(at_dispatched);
  return {{.index = index,
           .rows = dispatched.rows,
           .offsets = dispatched.offsets,
           .saved = dispatched.saved,
           .outputs = scratch.outputs,
           .d_weighted = scratch.outputs,
           .row_weights = scratch.row_weights,
           .d_rows = scratch.d_rows,
           .d_row_weights = scratch.d_row_weights},
          piece(saved.mlp, chunk_mlp_bytes(), mlp ? 0 : index)};
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
  const bool dispatch = saved.again.has(LayerOperator::dispatch), mlp = saved.again.has(LayerOperator::grouped_mlp);
  ExpertExchange exchange = this->exchange(block, io, saved, scratch);
  exchange.again = true;
  exchange.dispatch_again = dispatch;
  exchange.dy = dy;
  exchange.dx = scratch.b;
  exchange.dweights = scratch.d_weights;
  const auto send = [&](int c) {
    const Chunk next = chunk(saved, scratch, c);
    if (dispatch) experts_.dispatch_begin(stream, exchange, next.exchange);
    experts_.combine_backward_begin(stream, exchange, next.exchange);
  };
  experts_.begin(stream, exchange);
  send(0);
  for (int c = 0; c < chunks_; ++c) {
    const Chunk now = chunk(saved, scratch, c);
    const ExpertChunk& at = now.exchange;
    if (c + 1 < chunks_) send(c + 1);
    if (dispatch) experts_.dispatch_end(stream, exchange, at);
    if (mlp) operators_.grouped_mlp->forward(stream, {at.rows, at.offsets, weights, {}, now.mlp, scratch.operators});
    experts_.combine_backward_end(stream, exchange, at);
    operators_.grouped_mlp->backward(stream, {.x = at.rows,
                                              .offsets = at.offsets,
                                              .weights = weights,
                                              .dy = at.d_weighted,
                                              .dx = at.d_rows,
                                              .gradient = gradient,
                                              .saved = now.mlp,
                                              .workspace = scratch.operators,
                                              .row_weights = at.row_weights,
                                              .d_row_weights = at.d_row_weights,
                                              .overwrite = c == 0 && io.units.back().write_gradient});
    experts_.dispatch_backward_begin(stream, exchange, at);
    if (c > 0) experts_.dispatch_backward_end(stream, exchange, chunk(saved, scratch, c - 1).exchange);
  }
  if (io.experts_done) io.experts_done();
  experts_.dispatch_backward_end(stream, exchange, chunk(saved, scratch, chunks_ - 1).exchange);
}

}  // namespace ananke
