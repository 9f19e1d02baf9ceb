// Updates what waits in host memory: brings parts of parameters and their states to the device, bucket by bucket, lets
// the optimizer work on them there, and takes back what it changed.
//
//   host_to_device   in 0 | in 1 | in 2      | in 3 ...
//   compute                 0    | 1    | 2      | 3 ...
//   device_to_host                 out 0 | out 1 | out 2 ...
//
// Three buffers roll: copies in wait for the copies out of three buckets before, so that both directions of the link
// and the device work at once, and all of it takes as long as the slowest of them. Buffers are reserved once.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/roles/optimizer.h"
#include "runtime/roles/traffic.h"

namespace ananke {

// What all updates of one step share.
struct UpdateScalars {
  std::uint64_t step = 1;  // updates applied, this one included
  double lr_factor = 1;
  TensorView scale, finite;
};

// A part of an owned fragment, where it lies.
struct UpdatePart {
  const Parameter* parameter = nullptr;
  Optimizer* optimizer = nullptr;
  std::int64_t begin = 0;               // within the parameter
  TensorView weight, gradient;          // f32 [count]
  std::vector<TensorView> states = {};  // f32 [count] each
  TensorView transfer = {};             // on the device: what prepare() writes and apply() takes
  bool on_host = false;                 // weight, gradient and states are
};

// Which method of the optimizer: what it is given, and what it changes.
//   whole    update():  weight, gradient, states; changes weight and states
//   prepare  prepare(): gradient, states; changes states
//   apply    apply():   weight, which it changes
enum class UpdatePass { whole, prepare, apply };

// What an optimizer is told of a part that lies on the device, which outlives it.
OptimizerUpdate update_of(const UpdatePart& part, UpdatePass pass, const UpdateScalars& scalars);

class HostStep {
 public:
  // What travels in one buffer, laid out once.
  struct Bucket;
  using Buckets = std::vector<Bucket>;
  struct Need {  // of one fragment on the host
    std::int64_t count = 0;
    std::size_t states = 0;
  };

  // `bucket_bytes`: of one buffer, or less where all needs are less. The arguments outlive it.
  HostStep(Device& device, const OperatorSet& operators, std::span<const Need> needs, std::uint64_t bucket_bytes);
  ~HostStep();
  static std::vector<PlanLine> plan(std::span<const Need> needs, std::uint64_t bucket_bytes);

  // Those of `parts` that are on the host, in buckets; cut where one is longer than a bucket. Views are kept.
  Buckets cut(std::span<const UpdatePart> parts, UpdatePass pass) const;

  // Copies in start after what compute has been given so far.
  void begin();
  // Compute's work on all parts; those of a bucket as soon as they have arrived.
  void run(const Buckets& buckets, UpdatePass pass, const UpdateScalars& scalars);
  // Compute goes on after all copies out.
  void end();
  Traffic traffic() const;  // since start

 private:
  struct Slot {
    std::byte* memory = nullptr;
    std::unique_ptr<Event> arrived, computed, left;
  };
  void compute(const Bucket& bucket, std::byte* memory, UpdatePass pass, const UpdateScalars& scalars);

  Device& device_;
  const OperatorSet& operators_;
  Stream &compute_, &in_, &out_;
  Buffer memory_;
  std::int64_t elements_;  // f32 of one buffer
  std::vector<Slot> slots_;
  std::size_t next_ = 0;  // slot
  std::unique_ptr<Event> begun_;
  std::uint64_t bytes_in_ = 0, bytes_out_ = 0;
};

struct HostStep::Bucket {
  struct Copy {
    std::byte* host = nullptr;
    std::size_t offset = 0, bytes = 0;  // within the buffer
    bool out = false;                   // too: all come in
  };
  // Its array a (weight, gradient, states: those that the pass is given) lies `a * stride + offset` elements from the
  // buffer's begin.
  struct Piece {
    const Parameter* parameter = nullptr;
    std::int64_t begin = 0, count = 0;  // within the parameter
    std::int64_t offset = 0;
    TensorView transfer;
  };
  Optimizer* optimizer = nullptr;
  std::size_t states = 0;   // of every piece
  std::int64_t stride = 0;  // elements
  std::int64_t used = 0;    // of the stride
  std::vector<Copy> copies;
  std::vector<Piece> pieces;
};

}  // namespace ananke
