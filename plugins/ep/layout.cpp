#include "plugins/ep/layout.h"

#include <limits>

#include "runtime/base/error.h"
#include "runtime/model/region_cutter.h"

namespace ananke::ep {
namespace {

LayerSaved cut_layer(RegionCutter& cutter, const ExpertSizes& s, int chunks) {
  LayerSaved saved;
  saved.copies = cutter.tensor(DType::i32, {s.tokens, s.ranks});
  saved.counts = cutter.tensor(DType::i32, {2, s.ranks, chunks});
  return saved;
}

Exchange::Copies cut_chunk(RegionCutter& cutter, const ExpertSizes& s, int chunks) {
  const std::int64_t copies = capacity_of(s, chunks).copies;
  Exchange::Copies saved;
  saved.count = cutter.tensor(DType::i32, {1});
  saved.rows = cutter.tensor(DType::i32, {copies, s.k});
  saved.slots = cutter.tensor(DType::i32, {copies, s.k});
  saved.weights = cutter.tensor(DType::f32, {copies, s.k});
  return saved;
}

std::int64_t aligned(std::int64_t bytes) {
  constexpr auto alignment = static_cast<std::int64_t>(RegionCutter::alignment);
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

Capacity capacity_of(const ExpertSizes& s, int chunks) {
  const std::int64_t tokens = (s.tokens + chunks - 1) / chunks, local = s.local().count;
  Capacity c{tokens, tokens * std::min<std::int64_t>(s.k, s.ranks), local > 0 ? tokens * s.ranks : 0, 0};
  c.rows = c.copies * std::min(s.k, local);
  if (c.rows > std::numeric_limits<std::int32_t>::max()) {
    fail(
        ErrorKind::config,
        "ep: a chunk of {} tokens on each of {} ranks may become {} rows of {} experts, more than 32 bits count; raise "
        "plugins.ep.chunks from {}, or lower training.rows_per_microbatch",
        tokens, s.ranks, c.rows, local, chunks);
  }
  return c;
}

Buffers buffers_of(const ExpertSizes& s, int chunks, DType wire) {
  using Extras = WireRow::Extras;
  const Capacity c = capacity_of(s, chunks);
  Buffers b{{wire, Extras::routing, s.hidden, s.k},
            {wire, Extras::none, s.hidden, s.k},
            {wire, Extras::dweights, s.hidden, s.k},
            0,
            0,
            0,
            0,
            0};
  b.send_out = aligned(c.sent * b.token.bytes());
  b.receive_tokens = aligned(c.copies * b.token.bytes());
  b.receive_gradients = s.recompute ? aligned(c.copies * b.plain.bytes()) : 0;  // else they take turns with the tokens
  b.send_back = aligned(c.copies * b.gradient.bytes());
  b.receive_back = aligned(c.sent * b.gradient.bytes());
  return b;
}

std::uint64_t most_exchanged(const ExpertSizes& s, int chunks, DType wire) {
  if (s.ranks == 1) return 0;
  const Capacity c = capacity_of(s, chunks);
  const Buffers b = buffers_of(s, chunks, wire);
  const std::int64_t out = c.tokens * std::min<std::int64_t>(s.k, s.ranks - 1) * b.token.bytes();
  const std::int64_t back = c.copies / s.ranks * (s.ranks - 1) * b.gradient.bytes();
  return static_cast<std::uint64_t>(std::max(out, back)) * static_cast<std::uint64_t>(s.ranks) /
         static_cast<std::uint64_t>(s.ranks - 1);
}

std::size_t layer_saved_bytes(const ExpertSizes& s, int chunks) {
  RegionCutter cutter;
  cut_layer(cutter, s, chunks);
  return cutter.used();
}

LayerSaved layer_saved(const ExpertSizes& s, int chunks, Region region) {
  RegionCutter cutter(region);
  return cut_layer(cutter, s, chunks);
}

std::size_t chunk_saved_bytes(const ExpertSizes& s, int chunks) {
  RegionCutter cutter;
  cut_chunk(cutter, s, chunks);
  return cutter.used();
}

Exchange::Copies chunk_saved(const ExpertSizes& s, int chunks, Region region) {
  RegionCutter cutter(region);
  return cut_chunk(cutter, s, chunks);
}

}  // namespace ananke::ep
