// Are the weights of all replicas the same bits, and the routers' biases those of all ranks? They are updated apart,
// from gradients and loads that every replica got alike, so the first bit that differs is a defect (a reduction or an
// operator that is not the same everywhere), and it grows.
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
  static std::vector<PlanLine> plan(const ParameterTable& table, const MeshShape& mesh,
                                    std::span<const Fragment> owned);
  static std::vector<CollectiveUse> exchanges(const ParameterTable& table, std::span<const Fragment> owned);

  // Allocates. What nobody else holds is not compared: weights of one replica, biases of one rank. `biases`: f32
  // [layers, E], every layer's of table.buffers(), or empty. All arguments outlive the check.
  ReplicaCheck(const ParameterTable& table, Backend& backend, Communicator& replicate, Communicator& world,
               std::span<const OwnedFragment> fragments, const TensorView& biases);
  // After an update; all ranks call it alike. Hashes what this rank owns and all biases on the device, compares the
  // hashes of weights over the replicate axis and those of biases over the world, and waits for the outcome: one device
  // read. Throws Error(numeric) naming what differs.
  void run(std::uint64_t step);

 private:
  void hash_all();
  std::string describe_weights(std::span<const std::int64_t> extremes) const;  // empty: all alike
  std::string describe_biases(std::span<const std::int64_t> extremes) const;

  const ParameterTable& table_;
  Backend& backend_;
  Communicator& replicate_;
  Communicator& world_;
  std::span<const OwnedFragment> fragments_;  // none where there is one replica
  TensorView biases_;                         // empty where there is one rank
  Buffer memory_;
  TensorView hashes_;  // i64 [fragments and layers of biases, 2]
  std::unique_ptr<Event> hashed_, compared_;
};

}  // namespace ananke
