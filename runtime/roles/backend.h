// Role "backend": owns a device. One per job.
//
//   construct ─ device() ─ operators() ─ make_communicator(...) per axis ─ (steps) ─ destroy
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/collective_use.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/rendezvous.h"
#include "runtime/device/device.h"
#include "runtime/operators/operator_set.h"
#include "runtime/roles/context.h"

namespace ananke {

class Trace;

// What a device has at this moment, for all who use it.
struct DeviceRoom {
  std::string name;  // "GPU-5a4b..."
  std::uint64_t free = 0, total = 0;
  std::uint64_t taken = 0;  // of the plan's bytes: what the backend has already, and is not free any more
};

class Backend {
 public:
  static constexpr const char* role = "backend";
  virtual ~Backend() = default;
  // Do its operators take activations, and matrices that these are multiplied with, of this type? Pure.
  virtual bool computes_in(DType type) const { return type == DType::f32; }
  // Do its operators take weights, gradients and optimizer states, as owners store them, of this type (adamw,
  // square_sum, hash, and add of f32 to them)? Pure.
  virtual bool stores_in(DType type) const { return type == DType::f32; }
  // How all that it computes and sums has the same bits in every run of a job that asks for it
  // (training.deterministic), in a line; empty where that cannot be promised. Pure until operators() was called, then
  // with what was found there.
  virtual std::string determinism() const { return ""; }
  // Is its device's memory the host's? Pure.
  virtual bool computes_on_host() const { return false; }
  // Memory that it takes itself: its process, its device's context, and what collectives need beside the caller's
  // tensors. `largest`: one entry at most per axis and kind. Pure.
  virtual std::vector<PlanLine> plan(std::span<const CollectiveUse> /*largest*/) const { return {}; }
  // Of the lines of plan() those that no arena's ledger has, as they are now. After the start.
  virtual std::vector<PlanLine> in_use() { return {}; }
  // Opens the device. Nothing where its memory is the host's, or nobody can say.
  virtual std::optional<DeviceRoom> room() { return std::nullopt; }
  // Opens the device on first call. Host thread.
  virtual Device& device() = 0;
  // Complete: every pointer set. Owned by the backend.
  virtual const OperatorSet& operators() = 0;
  // From now on what the device does is told to `trace` (telemetry/trace.h), which lives until the next call; null: no
  // more, and all is told that was done. At both calls the streams stand still, unless the step has failed. A backend
  // whose streams are host threads tells it as they run and needs nothing here.
  virtual void trace(Trace* /*trace*/) {}
  // A communicator over `ranks` (ascending world ranks, own included), all of whom call this with the same name in the
  // same order. Blocks until all came, up to the exchange deadline. Owned by the caller, who destroys it before the
  // backend.
  virtual std::unique_ptr<Communicator> make_communicator(const std::string& name, std::span<const int> ranks,
                                                          Rendezvous& rendezvous) = 0;
};

}  // namespace ananke
