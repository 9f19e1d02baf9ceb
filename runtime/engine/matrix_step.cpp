#include "runtime/engine/matrix_step.h"

#include <algorithm>

namespace ananke {
namespace {

constexpr std::int64_t alignment = 64;  // elements
constexpr std::size_t slot_count = 2;

std::int64_t aligned(std::int64_t elements) { return (elements + alignment - 1) / alignment * alignment; }

// Sizes of the buffers, in elements.
struct Layout {
  explicit Layout(const MatrixWork& work) {
    for (const MatrixRound& round : work.travelling()) {
      transfer = std::max(transfer, aligned(round.transfer));
      landing = std::max(landing, aligned(round.exchange.received_elements()));
      assembled = std::max(assembled, aligned(round.matrices));
    }
    bool shared = false;
    for (const MatrixRound& round : work.resident()) {
      resident = std::max(resident, aligned(round.matrices));
      shared = shared || !round.broadcast.empty();
    }
    // What is broadcast is in use beyond its round's turn on the compute stream; other residents may lie where matrices
    // are put together at other times.
    resident_slots = shared ? slot_count : 1;
    matrices = shared ? assembled + static_cast<std::int64_t>(slot_count) * resident : std::max(assembled, resident);
  }
  std::int64_t resident_begin(std::size_t slot) const {
    return resident_slots == 1 ? 0 : assembled + static_cast<std::int64_t>(slot) * resident;
  }
  std::size_t transfer_bytes() const {
    return slot_count * static_cast<std::size_t>(transfer + landing) * sizeof(float);
  }
  std::size_t matrices_bytes() const { return static_cast<std::size_t>(matrices) * sizeof(float); }
  std::int64_t transfer = 0, landing = 0;  // of one slot
  std::int64_t assembled = 0, resident = 0, matrices = 0;
  std::size_t resident_slots = 1;
};

std::size_t workspace_bytes(const MatrixWork& work, const OperatorSet& operators) {
  std::size_t bytes = 0;
  for (const auto* rounds : {&work.travelling(), &work.resident()}) {
    for (const MatrixRound& round : *rounds) {
      for (const MatrixGroup& group : round.groups) {
        bytes =
            std::max(bytes, group.optimizer->transform_workspace(operators, group.count, group.rows, group.columns));
      }
    }
  }
  return bytes;
}

}  // namespace

MatrixStep::MatrixStep(const MatrixWork& work, const ParameterTable& table, std::span<const UpdateTarget> targets,
                       Backend& backend, Communicator& shard, Communicator& replicate, HostStep* host)
    : work_(work),
      table_(table),
      targets_(targets),
      backend_(backend),
      shard_(shard),
      replicate_(replicate),
      host_(host),
      compute_(backend.device().stream(Resource::compute)),
      network_(backend.device().stream(Resource::network)) {
  const Layout layout(work);
  Device& device = backend.device();
  transfer_ = device.memory().allocate(layout.transfer_bytes(), "matrices on the way");
  matrices_ = device.memory().allocate(layout.matrices_bytes(), "matrices being updated");
  workspace_ = device.memory().allocate(workspace_bytes(work, backend.operators()), "matrix workspace");
  for (const Buffer* buffer : {&transfer_, &matrices_}) {
    if (*buffer) device.zero(compute_, buffer->data(), buffer->bytes());  // also what lies between the matrices
  }
  const TensorView on_the_way =
      transfer_.view(DType::f32, {static_cast<std::int64_t>(slot_count) * (layout.transfer + layout.landing)});
  const TensorView matrices = matrices_.view(DType::f32, {layout.matrices});
  assembled_ = matrices.slice(0, layout.assembled);
  for (std::size_t i = 0; i < slot_count; ++i) {
    const TensorView mine = on_the_way.slice(static_cast<std::int64_t>(i) * (layout.transfer + layout.landing),
                                             layout.transfer + layout.landing);
    slots_.push_back({mine.slice(0, layout.transfer), mine.slice(layout.transfer, layout.landing), device.make_event(),
                      device.make_event()});
  }
  for (std::size_t i = 0; i < layout.resident_slots; ++i) {
    resident_slots_.push_back(
        {matrices.slice(layout.resident_begin(i), layout.resident), {}, device.make_event(), device.make_event()});
  }
  for (const MatrixRound& round : work.travelling()) {
    travelling_.push_back(slice_parts(round, slot_of(travelling_.size()).transfer));
  }
  for (const MatrixRound& round : work.resident()) {
    resident_.push_back(slice_parts(round, resident_slot_of(resident_.size()).transfer));
  }
}

std::vector<PlanLine> MatrixStep::plan(const MatrixWork& work, const OperatorSet& operators) {
  const Layout layout(work);
  return {{"matrices on the way", Place::device, layout.transfer_bytes()},
          {"matrices being updated", Place::device, layout.matrices_bytes()},
          {"matrix workspace", Place::device, workspace_bytes(work, operators)}};
}

std::vector<CollectiveUse> MatrixStep::exchanges(const MatrixWork& work) {
  std::int64_t exchanged = 0, broadcast = 0;
  for (const auto* rounds : {&work.travelling(), &work.resident()}) {
    for (const MatrixRound& round : *rounds) {
      exchanged = std::max({exchanged, round.exchange.sent_elements(), round.exchange.received_elements()});
      for (const ElementRange& range : round.broadcast) broadcast = std::max(broadcast, range.count);
    }
  }
  const auto bytes = [](std::int64_t elements) { return static_cast<std::uint64_t>(elements) * sizeof(float); };
  return {{"shard", CollectiveKind::all_to_all, bytes(exchanged)},
          {"replicate", CollectiveKind::broadcast, bytes(broadcast)}};
}

MatrixStep::Parts MatrixStep::slice_parts(const MatrixRound& round, const TensorView& buffer) const {
  Parts parts;
  for (const MatrixPart& part : round.parts) {
    const UpdateTarget& target = targets_[part.fragment];
    const OwnedFragment& fragment = *target.fragment;
    const auto slice = [&](const TensorView& view) { return view.slice(part.begin, part.count); };
    parts.all.push_back({.parameter = &table_.parameters()[static_cast<std::size_t>(fragment.where.parameter)],
                         .optimizer = target.optimizer,
                         .begin = fragment.where.begin + part.begin,
                         .weight = slice(fragment.weight),
                         .gradient = slice(fragment.gradient),
                         .transfer = buffer.slice(part.offset, part.count),
                         .on_host = fragment.place == Place::host});
    for (const TensorView& state : target.states) parts.all.back().states.push_back(slice(state));
  }
  if (host_ == nullptr) return parts;
  parts.prepare = host_->cut(parts.all, UpdatePass::prepare);
  parts.apply = host_->cut(parts.all, UpdatePass::apply);
  return parts;
}

void MatrixStep::prepare(const Parts& parts) {
  for (const UpdatePart& part : parts.all) {
    if (part.on_host) continue;
    part.optimizer->prepare(compute_, backend_.operators(), update_of(part, UpdatePass::prepare, scalars_),
                            part.transfer);
  }
  if (host_ != nullptr) host_->run(parts.prepare, UpdatePass::prepare, scalars_);
}

void MatrixStep::apply(const Parts& parts) {
  for (const UpdatePart& part : parts.all) {
    if (part.on_host) continue;
    part.optimizer->apply(compute_, backend_.operators(), update_of(part, UpdatePass::apply, scalars_), part.transfer);
  }
  if (host_ != nullptr) host_->run(parts.apply, UpdatePass::apply, scalars_);
}

void MatrixStep::transform(const MatrixRound& round, const TensorView& matrices) {
  for (const MatrixGroup& group : round.groups) {
    const TensorView batch = matrices.slice(group.offset, group.count * group.rows * group.columns)
                                 .reshaped({group.count, group.rows, group.columns});
    group.optimizer->transform(compute_, backend_.operators(),
                               {batch, {workspace_.data(), workspace_.bytes()}, scalars_.finite});
  }
}

// What comes next on the network starts after what compute has been given so far.
void MatrixStep::hand_to_network(Slot& slot) {
  compute_.record(*slot.ready);
  network_.wait(*slot.ready);
}

// Every replica's part of `buffer` to the others.
void MatrixStep::broadcast(const MatrixRound& round, const TensorView& buffer) {
  for (std::size_t r = 0; r < round.broadcast.size(); ++r) {
    const ElementRange& range = round.broadcast[r];
    if (range.count == 0) continue;
    replicate_.broadcast(network_, buffer.slice(range.begin, range.count), static_cast<int>(r));
    if (static_cast<int>(r) != replicate_.rank()) {
      replicate_bytes_ += static_cast<std::uint64_t>(range.count) * sizeof(float);
    }
  }
}

void MatrixStep::send(std::size_t index) {
  const MatrixRound& round = work_.travelling()[index];
  Slot& slot = slot_of(index);
  prepare(travelling_[index]);
  hand_to_network(slot);
  const TensorView sent = slot.transfer.slice(round.sent.begin, round.sent.count);
  shard_bytes_ += round.exchange.forward(network_, shard_, sent, slot.landing);
  network_.record(*slot.done);
}

void MatrixStep::transform_travellers(std::size_t index) {
  const MatrixRound& round = work_.travelling()[index];
  Slot& slot = slot_of(index);
  Device& device = backend_.device();
  compute_.wait(*slot.done);
  const auto copy_all = [&](bool back) {
    for (const MatrixCopy& copy : round.copies) {
      const TensorView landed = slot.landing.slice(copy.received, copy.count);
      const TensorView whole = assembled_.slice(copy.matrices, copy.count);
      device.copy(compute_, back ? landed.data : whole.data, back ? whole.data : landed.data, landed.bytes());
    }
  };
  copy_all(false);
  transform(round, assembled_);
  copy_all(true);
  hand_to_network(slot);
  const TensorView sent = slot.transfer.slice(round.sent.begin, round.sent.count);
  shard_bytes_ += round.exchange.backward(network_, shard_, sent, slot.landing);
  broadcast(round, slot.transfer);
  network_.record(*slot.done);
}

void MatrixStep::run_residents(std::size_t begin, std::size_t end) {
  for (std::size_t index = begin; index < end; ++index) {
    const MatrixRound& round = work_.resident()[index];
    Slot& slot = resident_slot_of(index);
    prepare(resident_[index]);
    transform(round, slot.transfer);
    if (!round.broadcast.empty()) {
      hand_to_network(slot);
      broadcast(round, slot.transfer);
      network_.record(*slot.done);
      // The one before, whose broadcast ran under this transform.
      if (index == 0) continue;
    }
    apply_last_resident();
  }
}

void MatrixStep::apply_last_resident() {
  const std::size_t index = resident_done_++;
  if (!work_.resident()[index].broadcast.empty()) compute_.wait(*resident_slot_of(index).done);
  apply(resident_[index]);
}

Traffic MatrixStep::traffic() const {
  return {{Resource::network, "shard", -1, Direction::redistribute, shard_bytes_},
          {Resource::network, "replicate", -1, Direction::redistribute, replicate_bytes_}};
}

void MatrixStep::run(const UpdateScalars& scalars, const std::function<void()>& other) {
  scalars_ = scalars;
  resident_done_ = 0;
  const std::size_t rounds = travelling_.size(), residents = resident_.size();
  // Residents in equal shares: one while the first round travels, one while each round's directions come back.
  const auto run_share = [&](std::size_t share) {
    run_residents(share * residents / (rounds + 1), (share + 1) * residents / (rounds + 1));
  };
  if (rounds > 0) send(0);
  other();
  run_share(0);
  for (std::size_t round = 0; round < rounds; ++round) {
    if (round + 1 < rounds) send(round + 1);
    transform_travellers(round);
    run_share(round + 1);
    compute_.wait(*slot_of(round).done);
    apply(travelling_[round]);
  }
  while (resident_done_ < residents) apply_last_resident();
}

}  // namespace ananke
