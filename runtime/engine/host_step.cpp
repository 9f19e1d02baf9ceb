#include "runtime/engine/host_step.h"

#include <algorithm>
#include <utility>

namespace ananke {
namespace {

constexpr const char* purpose = "state on its way";
constexpr std::size_t slot_count = 3;
constexpr std::int64_t alignment = 64;  // elements, of pieces and arrays in a buffer

std::int64_t aligned(std::int64_t elements) { return (elements + alignment - 1) / alignment * alignment; }

constexpr std::size_t weights_and_gradients = 2;

std::size_t arrays_of(UpdatePass pass, std::size_t states) {
  switch (pass) {
    case UpdatePass::prepare: return 1 + states;
    case UpdatePass::apply: return 1;
    default: return weights_and_gradients + states;
  }
}

// f32 of one buffer: no more than all fragments take at once, and room for a piece of every array.
std::int64_t slot_elements(std::span<const HostStep::Need> needs, std::uint64_t bucket_bytes) {
  std::int64_t all = 0, least = 0;
  for (const HostStep::Need& need : needs) {
    const auto arrays = static_cast<std::int64_t>(arrays_of(UpdatePass::whole, need.states));
    all += arrays * aligned(need.count);
    least = std::max(least, arrays * alignment);
  }
  const auto wanted = static_cast<std::int64_t>(bucket_bytes / sizeof(float)) / alignment * alignment;
  return std::max(least, std::min(all, wanted));
}

std::size_t bytes_of(std::int64_t elements) { return static_cast<std::size_t>(elements) * sizeof(float); }

// A copy that goes on where the one before it ends, on both sides, is that one's.
void add_copy(std::vector<HostStep::Bucket::Copy>& copies, HostStep::Bucket::Copy copy) {
  if (!copies.empty()) {
    HostStep::Bucket::Copy& last = copies.back();
    if (last.host + last.bytes == copy.host && last.offset + last.bytes == copy.offset) {
      last.bytes += copy.bytes;
      return;
    }
  }
  copies.push_back(copy);
}

struct Array {
  TensorView values;
  bool out;
};

// What the pass is given of a part, in the order in which it lies in a buffer.
std::vector<Array> arrays_of(const UpdatePart& part, UpdatePass pass) {
  std::vector<Array> arrays;
  if (pass != UpdatePass::prepare) arrays.push_back({part.weight, true});
  if (pass == UpdatePass::apply) return arrays;
  arrays.push_back({part.gradient, false});
  for (const TensorView& state : part.states) arrays.push_back({state, true});
  return arrays;
}

}  // namespace

OptimizerUpdate update_of(const UpdatePart& part, UpdatePass pass, const UpdateScalars& scalars) {
  const bool weight = pass != UpdatePass::prepare, others = pass != UpdatePass::apply;
  return {*part.parameter,
          part.begin,
          weight ? part.weight : TensorView{},
          others ? part.gradient : TensorView{},
          others ? std::span<const TensorView>(part.states) : std::span<const TensorView>{},
          scalars.step,
          scalars.lr_factor,
          scalars.scale,
          scalars.finite};
}

HostStep::HostStep(Device& device, const OperatorSet& operators, std::span<const Need> needs,
                   std::uint64_t bucket_bytes)
    : device_(device),
      operators_(operators),
      compute_(device.stream(Resource::compute)),
      in_(device.stream(Resource::host_to_device)),
      out_(device.stream(Resource::device_to_host)),
      elements_(slot_elements(needs, bucket_bytes)),
      begun_(device.make_event()) {
  const std::size_t bytes = bytes_of(elements_);
  memory_ = device.memory().allocate(slot_count * bytes, purpose);
  for (std::size_t i = 0; i < slot_count; ++i) {
    slots_.push_back({static_cast<std::byte*>(memory_.data()) + i * bytes, device.make_event(), device.make_event(),
                      device.make_event()});
  }
}

// The buffers must outlive the copies, also when a step ends by an error.
HostStep::~HostStep() {
  for (Stream* stream : {&in_, &out_, &compute_}) {
    try {
      stream->synchronize();
    } catch (...) {  // whoever ran the step has been told
    }
  }
}

std::vector<PlanLine> HostStep::plan(std::span<const Need> needs, std::uint64_t bucket_bytes) {
  if (needs.empty()) return {};
  return {{purpose, Place::device, slot_count * bytes_of(slot_elements(needs, bucket_bytes))}};
}

HostStep::Buckets HostStep::cut(std::span<const UpdatePart> parts, UpdatePass pass) const {
  Buckets buckets;
  std::vector<std::vector<Bucket::Copy>> copies;  // of the last bucket, by array
  const auto close = [&] {
    for (const auto& of_array : copies) {
      buckets.back().copies.insert(buckets.back().copies.end(), of_array.begin(), of_array.end());
    }
    copies.clear();
  };
  for (const UpdatePart& part : parts) {
    if (!part.on_host) continue;
    const std::vector<Array> arrays = arrays_of(part, pass);
    const std::int64_t stride = elements_ / std::ssize(arrays) / alignment * alignment;
    const std::int64_t count = (pass == UpdatePass::prepare ? part.gradient : part.weight).elements();
    for (std::int64_t done = 0; done < count;) {
      const bool fits = !buckets.empty() && buckets.back().optimizer == part.optimizer &&
                        buckets.back().states == part.states.size() && buckets.back().used < stride;
      if (!fits) {
        close();
        buckets.push_back({part.optimizer, part.states.size(), stride, 0, {}, {}});
        copies.resize(arrays.size());
      }
      Bucket& bucket = buckets.back();
      const std::int64_t n = std::min(count - done, stride - bucket.used);
      for (std::size_t a = 0; a < arrays.size(); ++a) {
        const TensorView values = arrays[a].values.slice(done, n);
        add_copy(copies[a],
                 {static_cast<std::byte*>(values.data), bytes_of(static_cast<std::int64_t>(a) * stride + bucket.used),
                  values.bytes(), arrays[a].out});
      }
      bucket.pieces.push_back({part.parameter, part.begin + done, n, bucket.used,
                               part.transfer ? part.transfer.slice(done, n) : TensorView{}});
      bucket.used += aligned(n);
      done += n;
    }
  }
  close();
  return buckets;
}

void HostStep::begin() {
  compute_.record(*begun_);
  in_.wait(*begun_);
}

void HostStep::run(const Buckets& buckets, UpdatePass pass, const UpdateScalars& scalars) {
  for (const Bucket& bucket : buckets) {
    Slot& slot = slots_[next_++ % slots_.size()];
    in_.wait(*slot.left);
    for (const Bucket::Copy& copy : bucket.copies) {
      device_.copy(in_, slot.memory + copy.offset, copy.host, copy.bytes);
      bytes_in_ += copy.bytes;
    }
    in_.record(*slot.arrived);
    compute_.wait(*slot.arrived);
    compute(bucket, slot.memory, pass, scalars);
    compute_.record(*slot.computed);
    out_.wait(*slot.computed);
    for (const Bucket::Copy& copy : bucket.copies) {
      if (!copy.out) continue;
      device_.copy(out_, copy.host, slot.memory + copy.offset, copy.bytes);
      bytes_out_ += copy.bytes;
    }
    out_.record(*slot.left);
  }
}

void HostStep::compute(const Bucket& bucket, std::byte* memory, UpdatePass pass, const UpdateScalars& scalars) {
  std::vector<UpdatePart> parts;
  for (const Bucket::Piece& piece : bucket.pieces) {
    std::int64_t at = piece.offset;
    const auto next = [&] {
      const TensorView view{memory + bytes_of(std::exchange(at, at + bucket.stride)), DType::f32, Shape{piece.count}};
      return view;
    };
    UpdatePart& part = parts.emplace_back();
    part.parameter = piece.parameter;
    part.begin = piece.begin;
    if (pass != UpdatePass::prepare) part.weight = next();
    if (pass == UpdatePass::apply) continue;
    part.gradient = next();
    for (std::size_t s = 0; s < bucket.states; ++s) part.states.push_back(next());
  }
  std::vector<OptimizerUpdate> updates;
  for (const UpdatePart& part : parts) updates.push_back(update_of(part, pass, scalars));
  if (pass == UpdatePass::whole) return bucket.optimizer->update_all(compute_, operators_, updates);
  for (std::size_t i = 0; i < updates.size(); ++i) {
    const TensorView& transfer = bucket.pieces[i].transfer;
    if (pass == UpdatePass::prepare) {
      bucket.optimizer->prepare(compute_, operators_, updates[i], transfer);
    } else {
      bucket.optimizer->apply(compute_, operators_, updates[i], transfer);
    }
  }
}

void HostStep::end() {
  for (const Slot& slot : slots_) compute_.wait(*slot.left);
}

Traffic HostStep::traffic() const {
  return {{Resource::host_to_device, "host", -1, Direction::update, bytes_in_},
          {Resource::device_to_host, "host", -1, Direction::update, bytes_out_}};
}

}  // namespace ananke
