// Role "backend": owns a device. One per job.
//
//   construct ─ device() ─ operators() ─ make_communicator(...) per axis ─ (steps) ─ destroy
#pragma once

#include <memory>
#include <span>
#include <string>

#include "runtime/comm/communicator.h"
#include "runtime/comm/rendezvous.h"
#include "runtime/device/device.h"
#include "runtime/operators/operator_set.h"
#include "runtime/roles/context.h"

namespace ananke {

class Backend {
 public:
  static constexpr const char* role = "backend";
  virtual ~Backend() = default;
  // Do its operators take activations, and matrices that these are multiplied with, of this type? Pure.
  virtual bool computes_in(DType type) const { return type == DType::f32; }
  // How all that it computes and sums has the same bits in every run of a job that asks for it
  // (training.deterministic), in a line; empty where that cannot be promised. Pure until operators() was called, then
  // with what was found there.
  virtual std::string determinism() const { return ""; }
  // Opens the device on first call. Host thread.
  virtual Device& device() = 0;
  // Complete: every pointer set. Owned by the backend.
  virtual const OperatorSet& operators() = 0;
  // A communicator over `ranks` (ascending world ranks, own included), all of whom call this with the same name in the
  // same order. Blocks until all came, up to the exchange deadline. Owned by the caller, who destroys it before the
  // backend.
  virtual std::unique_ptr<Communicator> make_communicator(const std::string& name, std::span<const int> ranks,
                                                          Rendezvous& rendezvous) = 0;
};

}  // namespace ananke
