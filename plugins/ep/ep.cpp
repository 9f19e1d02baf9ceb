// Experts plugin: token exchange over the mesh's expert axis by all-to-alls, one per chunk and direction.
//
// The exchange stream (nvlink) packs and sends; the compute stream groups what arrived, and sums what goes back:
//
//   exchange   D0 D1 │ C0 D2 │ C1 D3 │ ...      D: dispatch of a chunk, C: its combine
//   compute       mlp 0   mlp 1   mlp 2         a chunk's mlp waits for its D alone
//
// What arrives has two places that take turns. How many copies travel is counted on the device. Where ranks reach each
// other's memory nobody else needs to know it (Communicator::all_to_all_rows). Elsewhere the counts are exchanged, and
// read by the host once per forward of a layer: the all-to-alls need them. Either way all ranks make the same calls
// whatever the counts, and the rows lie in the same places.
#include <algorithm>
#include <array>
#include <utility>

#include "plugins/ep/ep.pb.h"
#include "plugins/ep/layout.h"
#include "runtime/base/error.h"
#include "runtime/plugin/descriptor.h"
#include "runtime/roles/compute_type.h"

namespace ananke {
namespace {

using ep::LayerSaved;

// Where what travels in one direction lands, chunks in turn.
struct Lane {
  TensorView place[2];                          // u8
  std::unique_ptr<Event> arrived[2], taken[2];  // the exchange has filled it; the compute stream is done with it
};

constexpr std::array directions{Direction::counts, Direction::dispatch, Direction::combine, Direction::combine_backward,
                                Direction::dispatch_backward};
std::size_t index_of(Direction direction) {
  return static_cast<std::size_t>(std::find(directions.begin(), directions.end(), direction) - directions.begin());
}

bool goes_out(Direction direction) {
  return direction == Direction::dispatch || direction == Direction::combine_backward;
}

constexpr const char* received_purpose = "token exchange, bytes (host)";
constexpr std::size_t received_bytes = directions.size() * sizeof(std::int64_t);

Lane make_lane(Device& device, const TensorView& memory) {
  Lane lane;
  const std::int64_t half = memory.elements() / 2;
  for (int i = 0; i < 2; ++i) {
    lane.place[i] = memory.slice(i * half, half);
    lane.arrived[i] = device.make_event();
    lane.taken[i] = device.make_event();
  }
  return lane;
}

// The first `rows` of the wire's rows in `memory`.
TensorView rows_in(const TensorView& memory, std::int64_t rows, const WireRow& row) {
  return memory.slice(0, rows * row.bytes()).reshaped({rows, row.bytes()});
}

// Tokens [range) of a tensor whose first dimension is the token.
TensorView tokens_of(const TensorView& all, TokenRange range) {
  const std::int64_t width = all.shape[1];
  return all.slice(range.begin * width, range.count * width).reshaped({range.count, width});
}

class Ep final : public Experts {
 public:
  Ep(const RoleContext& context, const plugin::Ep& config)
      : chunks_(static_cast<int>(config.chunks())),
        wire_(config.wire() == plugin::Ep::BF16 ? DType::bf16 : compute_type(context.job)),
        host_counts_(config.counts() == plugin::Ep::HOST) {}
  ~Ep() override { wait_quietly(); }

  bool exchanges_tokens() const override { return true; }
  void use(const OperatorSet& operators) override { operators_ = operators.exchange; }
  int chunks() const override { return chunks_; }
  std::int64_t capacity(const ExpertSizes& s) const override { return ep::capacity_of(s, chunks_).rows; }
  std::size_t saved(const ExpertSizes& s) const override { return ep::layer_saved_bytes(s, chunks_); }
  std::size_t chunk_saved(const ExpertSizes& s) const override { return ep::chunk_saved_bytes(s, chunks_); }
  std::size_t workspace(const ExpertSizes& s) const override { return operators_->workspace(s.local().count); }
  std::vector<PlanLine> plan(const ExpertSizes& s) const override {
    const ep::Buffers b = ep::buffers_of(s, chunks_, wire_);
    return {{"tokens on their way to experts", Place::device, b.out()},
            {"tokens on their way back", Place::device, b.back()},
            {received_purpose, Place::host, received_bytes}};
  }

  std::vector<CollectiveUse> exchanges(const ExpertSizes& s) const override {
    return {{"expert", CollectiveKind::all_to_all, ep::most_exchanged(s, chunks_, wire_)}};
  }

  void start(const ExpertsStart& start) override;
  void begin(Stream& compute, const ExpertExchange& a) override;
  void dispatch_begin(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) override;
  void dispatch_end(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) override;
  void combine_begin(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) override;
  void combine_end(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) override;
  void combine_backward_begin(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) override;
  void combine_backward_end(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) override;
  void dispatch_backward_begin(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) override;
  void dispatch_backward_end(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) override;
  Traffic traffic() const override;

 private:
  struct Chunk {  // what the calls of one chunk compute with
    int turn;
    TokenRange tokens;
    TensorView copies;  // i32 [tokens, ranks]
    Exchange::Copies arrived;
  };
  Chunk at(const ExpertExchange& a, const ExpertChunk& chunk) const;
  const std::int32_t* counted(const ExpertExchange& a) const;
  void exchange(const ExpertExchange& a, int chunk, Direction direction, const TensorView& send,
                const TensorView& receive, const WireRow& row);
  void exchange_on_device(const ExpertExchange& a, int chunk, Direction direction, const TensorView& send,
                          const TensorView& receive, const WireRow& row);
  void exchange_counts(Stream& compute, const ExpertExchange& a, const LayerSaved& saved);
  void send_out(const ExpertExchange& a, const ExpertChunk& chunk, Direction direction, const TensorView& values,
                Lane& lane, const WireRow& row);
  void send_back(Stream& compute, const ExpertExchange& a, int chunk, Direction direction, const WireRow& row);
  TensorView place_of(const Lane& lane, int turn, std::int64_t rows, const WireRow& row) const {
    return rows_in(lane.place[turn], rows, row);
  }
  Lane& gradients() { return sizes_.recompute ? gradients_ : tokens_; }
  void wait_quietly() noexcept;

  const int chunks_;
  const DType wire_;
  const bool host_counts_;
  Exchange* operators_ = nullptr;

  Device* device_ = nullptr;
  Communicator* expert_ = nullptr;
  Stream* exchange_ = nullptr;
  ExpertSizes sizes_{};
  int slots_ = 0;
  ep::Capacity capacity_{};
  WireRow token_row_{}, plain_row_{}, gradient_row_{};
  Buffer out_, back_;
  bool on_device_ = false;  // the counts stay there
  Buffer received_there_;   // i64 by direction, of all layers: bytes from other ranks, where the counts stay there
  TensorView send_out_, send_back_[2];
  Lane tokens_, gradients_, results_;  // x (and dy where no dispatch is made again); dy; y and dx
  std::unique_ptr<Event> ready_, counted_, summed_[2];
  std::vector<std::vector<std::int32_t>> counts_;  // by layer and slot: [2, ranks, chunks], as LayerSaved::counts
  std::vector<std::array<std::uint64_t, directions.size()>> received_;  // likewise, by layer, where the host counts
  std::vector<int> unit_of_layer_;
};

void Ep::start(const ExpertsStart& start) {
  const StartContext& context = start.context;
  ANANKE_CHECK(context.expert.size() == start.sizes.ranks && context.expert.rank() == start.sizes.rank,
               "ep: rank {} of {} on the expert axis, but the communicator is rank {} of {}", start.sizes.rank,
               start.sizes.ranks, context.expert.rank(), context.expert.size());
  ANANKE_CHECK(!device_, "ep starts twice");
  device_ = &context.backend.device();
  expert_ = &context.expert;
  exchange_ = &device_->stream(Resource::nvlink);
  sizes_ = start.sizes;
  slots_ = start.slots;
  capacity_ = ep::capacity_of(sizes_, chunks_);
  const ep::Buffers b = ep::buffers_of(sizes_, chunks_, wire_);
  token_row_ = b.token, plain_row_ = b.plain, gradient_row_ = b.gradient;

  Arena& memory = device_->memory();
  const auto [out, back] = std::pair(static_cast<std::int64_t>(b.out()), static_cast<std::int64_t>(b.back()));
  out_ = memory.allocate(b.out(), "tokens on their way to experts");
  back_ = memory.allocate(b.back(), "tokens on their way back");
  const TensorView all_out = out_.view(DType::u8, {out}), all_back = back_.view(DType::u8, {back});
  on_device_ = !host_counts_ && expert_->share(*exchange_, all_out) && expert_->share(*exchange_, all_back);
  received_there_ = device_->host_memory().allocate(received_bytes, received_purpose);
  send_out_ = all_out.slice(0, b.send_out);
  tokens_ = make_lane(*device_, all_out.slice(b.send_out, 2 * b.receive_tokens));
  gradients_ = make_lane(*device_, all_out.slice(b.send_out + 2 * b.receive_tokens, 2 * b.receive_gradients));
  results_ = make_lane(*device_, all_back.slice(2 * b.send_back, 2 * b.receive_back));
  for (int turn = 0; turn < 2; ++turn) {
    send_back_[turn] = all_back.slice(turn * b.send_back, b.send_back);
    summed_[turn] = device_->make_event();
  }
  ready_ = device_->make_event();
  counted_ = device_->make_event();
  counts_.resize(static_cast<std::size_t>(start.layers) * static_cast<std::size_t>(slots_));
  received_.assign(static_cast<std::size_t>(start.layers), {});
  unit_of_layer_.assign(static_cast<std::size_t>(start.layers), -1);
  for (const Block& block : context.table.blocks()) {
    if (block.moe && block.layer < start.layers) unit_of_layer_[static_cast<std::size_t>(block.layer)] = block.units[1];
  }
}

// Buffers must outlive the work on them, also when a step ends by an error.
void Ep::wait_quietly() noexcept {
  if (!device_) return;
  for (Stream* stream : {exchange_, &device_->stream(Resource::compute)}) {
    try {
      stream->synchronize();
    } catch (...) {  // whoever ran the step has been told
    }
  }
}

Ep::Chunk Ep::at(const ExpertExchange& a, const ExpertChunk& chunk) const {
  const std::int64_t tokens = a.routing.indices.shape[0];
  const TokenRange range = chunk_tokens(sizes_.tokens, tokens, chunks_, chunk.index);
  return {chunk.index % 2, range, tokens_of(ep::layer_saved(sizes_, chunks_, a.saved).copies, range),
          ep::chunk_saved(sizes_, chunks_, chunk.saved)};
}

const std::int32_t* Ep::counted(const ExpertExchange& a) const {
  const std::size_t index =
      static_cast<std::size_t>(a.layer) * static_cast<std::size_t>(slots_) + static_cast<std::size_t>(a.slot);
  ANANKE_CHECK(index < counts_.size() && !counts_[index].empty(),
               "ep: layer {}, microbatch {} in flight has not begun a forward", a.layer, a.slot);
  return counts_[index].data();
}

void Ep::begin(Stream& compute, const ExpertExchange& a) {
  const LayerSaved saved = ep::layer_saved(sizes_, chunks_, a.saved);
  const std::int64_t tokens = a.routing.indices.shape[0];
  if (!a.again || a.dispatch_again) {
    operators_->plan(compute, {a.routing.indices, sizes_.experts, capacity_.tokens,
                               tokens_of(saved.copies, {0, tokens}), saved.leaving()});
    if (!on_device_) exchange_counts(compute, a, saved);
  }
  compute.record(*ready_);
  exchange_->wait(*ready_);
}

void Ep::exchange_counts(Stream& compute, const ExpertExchange& a, const LayerSaved& saved) {
  compute.record(*ready_);
  exchange_->wait(*ready_);
  const std::vector<std::int64_t> each(static_cast<std::size_t>(sizes_.ranks), chunks_);
  expert_->all_to_all(*exchange_, saved.leaving(), each, saved.arriving(), each);
  received_[static_cast<std::size_t>(a.layer)][index_of(Direction::counts)] +=
      (static_cast<std::uint64_t>(sizes_.ranks) - 1) * static_cast<std::uint64_t>(chunks_) * sizeof(std::int32_t);
  exchange_->record(*counted_);
  compute.wait(*counted_);
  if (a.again) return;
  auto& counts = counts_.at(static_cast<std::size_t>(a.layer * slots_ + a.slot));
  counts.resize(static_cast<std::size_t>(saved.counts.elements()));
  device_->read(saved.counts, counts.data());
}

// Rows of `send` to the ranks they are for, rows of every rank into `receive`: outwards as counted, back the other way.
void Ep::exchange(const ExpertExchange& a, int chunk, Direction direction, const TensorView& send,
                  const TensorView& receive, const WireRow& row) {
  if (on_device_) return exchange_on_device(a, chunk, direction, send, receive, row);
  const std::int32_t* counts = counted(a);
  const bool outwards = goes_out(direction);
  std::vector<std::int64_t> leaving, arriving;
  for (int p = 0; p < sizes_.ranks; ++p) {
    leaving.push_back(counts[p * chunks_ + chunk] * row.bytes());
    arriving.push_back(counts[(sizes_.ranks + p) * chunks_ + chunk] * row.bytes());
  }
  if (!outwards) leaving.swap(arriving);
  std::uint64_t& received = received_[static_cast<std::size_t>(a.layer)][index_of(direction)];
  for (int p = 0; p < sizes_.ranks; ++p) {
    if (p != sizes_.rank) received += static_cast<std::uint64_t>(arriving[static_cast<std::size_t>(p)]);
  }
  expert_->all_to_all(*exchange_, send, leaving, receive, arriving);
}

// Dispatch tells how many arrive; what follows goes by that.
void Ep::exchange_on_device(const ExpertExchange& a, int chunk, Direction direction, const TensorView& send,
                            const TensorView& receive, const WireRow& row) {
  const LayerSaved saved = ep::layer_saved(sizes_, chunks_, a.saved);
  const bool outwards = goes_out(direction);
  const auto [from, to] =
      outwards ? std::pair(capacity_.sent, capacity_.copies) : std::pair(capacity_.copies, capacity_.sent);
  const auto place = static_cast<std::int64_t>(index_of(direction));
  expert_->all_to_all_rows(
      *exchange_, {rows_in(send, from, row), outwards ? saved.leaving() : saved.arriving(), rows_in(receive, to, row),
                   direction == Direction::dispatch ? saved.arriving() : TensorView{}, chunk,
                   received_there_.view(DType::i64, {1}, static_cast<std::size_t>(place) * sizeof(std::int64_t))});
}

void Ep::send_out(const ExpertExchange& a, const ExpertChunk& chunk, Direction direction, const TensorView& values,
                  Lane& lane, const WireRow& row) {
  const Chunk c = at(a, chunk);
  Exchange::Pack pack{tokens_of(values, c.tokens), c.copies, {}, {}, row, rows_in(send_out_, capacity_.sent, row)};
  if (row.extras == WireRow::Extras::routing) {
    pack.weights = tokens_of(a.routing.weights, c.tokens);
    pack.indices = tokens_of(a.routing.indices, c.tokens);
  }
  operators_->pack(*exchange_, pack);
  exchange_->wait(*lane.taken[c.turn]);
  exchange(a, chunk.index, direction, send_out_, lane.place[c.turn], row);
  exchange_->record(*lane.arrived[c.turn]);
}

// The compute stream has filled send_back_.
void Ep::send_back(Stream& compute, const ExpertExchange& a, int chunk, Direction direction, const WireRow& row) {
  const int turn = chunk % 2;
  compute.record(*summed_[turn]);
  exchange_->wait(*summed_[turn]);
  exchange_->wait(*results_.taken[turn]);
  exchange(a, chunk, direction, send_back_[turn], results_.place[turn], row);
  exchange_->record(*results_.arrived[turn]);
}

void Ep::dispatch_begin(Stream&, const ExpertExchange& a, const ExpertChunk& chunk) {
  send_out(a, chunk, Direction::dispatch, a.x, tokens_, token_row_);
}

void Ep::dispatch_end(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) {
  const Chunk c = at(a, chunk);
  compute.wait(*tokens_.arrived[c.turn]);
  operators_->expand(compute, {place_of(tokens_, c.turn, capacity_.copies, token_row_), token_row_,
                               ep::layer_saved(sizes_, chunks_, a.saved).arriving(), chunk.index, sizes_.local().first,
                               chunk.rows, chunk.offsets, c.arrived, a.workspace});
  compute.record(*tokens_.taken[c.turn]);
}

void Ep::combine_begin(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) {
  const Chunk c = at(a, chunk);
  compute.wait(*results_.arrived[c.turn]);  // what was sent from here two chunks ago has left
  operators_->combine(
      compute, {chunk.outputs, c.arrived, plain_row_, rows_in(send_back_[c.turn], capacity_.copies, plain_row_)});
  send_back(compute, a, chunk.index, Direction::combine, plain_row_);
}

void Ep::combine_end(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) {
  const Chunk c = at(a, chunk);
  compute.wait(*results_.arrived[c.turn]);
  operators_->collect(compute, {place_of(results_, c.turn, capacity_.sent, plain_row_),
                                plain_row_,
                                c.copies,
                                tokens_of(a.y, c.tokens),
                                {},
                                sizes_.experts,
                                {}});
  compute.record(*results_.taken[c.turn]);
}

void Ep::combine_backward_begin(Stream&, const ExpertExchange& a, const ExpertChunk& chunk) {
  send_out(a, chunk, Direction::combine_backward, a.dy, gradients(), plain_row_);
}

void Ep::combine_backward_end(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) {
  const Chunk c = at(a, chunk);
  compute.wait(*gradients().arrived[c.turn]);
  operators_->combine_backward(compute, {place_of(gradients(), c.turn, capacity_.copies, plain_row_), plain_row_,
                                         c.arrived, chunk.d_weighted, chunk.row_weights});
  compute.record(*gradients().taken[c.turn]);
}

void Ep::dispatch_backward_begin(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) {
  const Chunk c = at(a, chunk);
  compute.wait(*results_.arrived[c.turn]);
  operators_->expand_backward(compute, {chunk.d_rows, chunk.d_row_weights, c.arrived, gradient_row_,
                                        rows_in(send_back_[c.turn], capacity_.copies, gradient_row_)});
  send_back(compute, a, chunk.index, Direction::dispatch_backward, gradient_row_);
}

void Ep::dispatch_backward_end(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) {
  const Chunk c = at(a, chunk);
  compute.wait(*results_.arrived[c.turn]);
  operators_->collect(compute, {place_of(results_, c.turn, capacity_.sent, gradient_row_), gradient_row_, c.copies,
                                tokens_of(a.dx, c.tokens), tokens_of(a.routing.indices, c.tokens), sizes_.experts,
                                tokens_of(a.dweights, c.tokens)});
  compute.record(*results_.taken[c.turn]);
}

// Of counts that stayed on the device nobody has told layers apart: they stand under the first. The work is done.
Traffic Ep::traffic() const {
  Traffic lines;
  const auto first = std::find_if(unit_of_layer_.begin(), unit_of_layer_.end(), [](int unit) { return unit >= 0; });
  for (std::size_t i = 0; on_device_ && i < directions.size(); ++i) {
    const std::int64_t bytes = static_cast<const std::int64_t*>(received_there_.data())[i];
    if (bytes == 0) continue;
    lines.push_back({Resource::nvlink, "expert", first == unit_of_layer_.end() ? -1 : *first, directions[i],
                     static_cast<std::uint64_t>(bytes)});
  }
  for (std::size_t layer = 0; layer < received_.size(); ++layer) {
    for (const Direction direction : directions) {
      const std::uint64_t bytes = received_[layer][index_of(direction)];
      if (bytes > 0) lines.push_back({Resource::nvlink, "expert", unit_of_layer_[layer], direction, bytes});
    }
  }
  return lines;
}

}  // namespace

ANANKE_PLUGIN(Experts, Ep, plugin::Ep);

}  // namespace ananke
