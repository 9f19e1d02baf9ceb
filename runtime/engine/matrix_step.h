// Carries out the matrix work of a step: prepares parts, moves them to their owners, transforms, and brings the
// directions back.
//
//   compute   prepare 0 | other updates, residents | prepare 1 | transform 0 | residents | apply 0 | prepare 2 | ...
//   network        gather 0                             gather 1      return 0                  gather 2
//
// Two rounds are under way, each in one of two slots: a transfer buffer (parts of this rank) and a landing buffer
// (parts of its matrices). Matrices are put together in one more buffer, which resident rounds use in between.
// Everything is reserved once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/host_step.h"
#include "runtime/engine/matrix_work.h"
#include "runtime/roles/parameters.h"

namespace ananke {

// Where one owned fragment's numbers are.
struct UpdateTarget {
  const OwnedFragment* fragment = nullptr;
  Optimizer* optimizer = nullptr;
  std::vector<TensorView> states;  // [count] of the weight's type each
};

class MatrixStep {
 public:
  // targets: of this rank's fragments, in their order. The communicators are used on the network stream. `host`: null
  // where no fragment is there; between begin() and end() while this runs. All arguments outlive it.
  MatrixStep(const MatrixWork& work, const ParameterTable& table, std::span<const UpdateTarget> targets,
             Backend& backend, Communicator& shard, Communicator& replicate, HostStep* host = nullptr);
  static std::vector<PlanLine> plan(const MatrixWork& work, const OperatorSet& operators);
  static std::vector<CollectiveUse> exchanges(const MatrixWork& work);

  // `other`: work for the compute stream that may run while the first round travels.
  void run(const UpdateScalars& scalars, const std::function<void()>& other);
  // Received from other ranks since start, over the two axes.
  Traffic traffic() const;

 private:
  struct Parts {  // of fragments, sliced once
    std::vector<UpdatePart> all;
    HostStep::Buckets prepare, apply;  // of those on the host
  };
  struct Slot {
    TensorView transfer, landing;
    std::unique_ptr<Event> ready, done;  // compute's work for the network, and the network's for compute
  };
  Parts slice_parts(const MatrixRound& round, const TensorView& buffer) const;
  void prepare(const Parts& parts);
  void transform(const MatrixRound& round, const TensorView& matrices);
  void apply(const Parts& parts);
  void broadcast(const MatrixRound& round, const TensorView& buffer);
  void send(std::size_t round);
  void transform_travellers(std::size_t round);
  void run_residents(std::size_t begin, std::size_t end);
  void apply_last_resident();
  void hand_to_network(Slot& slot);
  Slot& slot_of(std::size_t round) { return slots_[round % slots_.size()]; }
  Slot& resident_slot_of(std::size_t round) { return resident_slots_[round % resident_slots_.size()]; }

  const MatrixWork& work_;
  const ParameterTable& table_;
  std::span<const UpdateTarget> targets_;
  Backend& backend_;
  Communicator& shard_;
  Communicator& replicate_;
  HostStep* host_;
  Stream& compute_;
  Stream& network_;
  Buffer transfer_, matrices_, workspace_;
  TensorView assembled_;                      // where matrices that travelled are put together
  std::vector<Slot> slots_;                   // two
  std::vector<Slot> resident_slots_;          // one, or two where replicas share
  std::vector<Parts> travelling_, resident_;  // by round
  std::size_t resident_done_ = 0;             // rounds applied
  UpdateScalars scalars_;
  std::uint64_t shard_bytes_ = 0, replicate_bytes_ = 0;
};

}  // namespace ananke
