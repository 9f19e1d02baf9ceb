// Are the weights of all replicas the same bits? They are updated apart, from gradients that every replica got alike,
// so the first bit that differs is a defect (a reduction or an operator that is not the same everywhere), and it grows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/roles/parameters.h"

namespace ananke {

class ReplicaCheck {
 public:
  // True where the job asks for it, and in every debug build.
  static bool wanted(const Job& job);
  static std::vector<PlanLine> plan(const MeshShape& mesh, std::span<const Fragment> owned);

  // Allocates. Nothing is compared where there is one replica. All arguments outlive the check.
  ReplicaCheck(const ParameterTable& table, Backend& backend, Communicator& replicate,
               std::span<const OwnedFragment> fragments);
  // After an update; all ranks of the replicate axis call it alike. Hashes what this rank owns on the device, compares
  // the hashes over the axis, and waits for the outcome: one device read. Throws Error(numeric) naming the parameters.
  void run(std::uint64_t step);

 private:
  const ParameterTable& table_;
  Backend& backend_;
  Communicator& replicate_;
  std::span<const OwnedFragment> fragments_;
  Buffer memory_;
  TensorView hashes_;  // i64 [fragments, 2]
  std::unique_ptr<Event> hashed_, compared_;
};

}  // namespace ananke
