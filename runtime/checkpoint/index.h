// The index of a checkpoint as data: made of the ranks' parts, and asked where a range of elements lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"

namespace ananke {

class CheckpointTensor;  // proto/ananke/checkpoint.proto

// Merges what each rank wrote: a part holds one file, and fragments that point at it (file 0).
class IndexBuilder {
 public:
  explicit IndexBuilder(CheckpointIndex& index) : index_(index) {}
  // Throws Error(checkpoint) when two ranks disagree on a tensor's shape.
  void add(const CheckpointIndex& part);
  // Sorts every tensor's fragments. Throws Error(checkpoint) naming the tensor and the elements that nobody wrote or
  // that were written twice.
  void finish();

 private:
  CheckpointIndex& index_;
  std::map<std::pair<std::string, std::string>, int> tensors_;  // (parameter, state) → its place in the index
};

// Throws Error(checkpoint) naming the tensor unless the index is one that IndexBuilder could have finished: every
// tensor once, its elements in fragments of files that there are, in order, all of them and none twice.
void check_index(const CheckpointIndex& index);

// A part of a target that lies in one fragment of one file.
struct FilePiece {
  std::size_t target = 0;   // index into the targets
  int file = 0;             // index into CheckpointIndex.files
  std::int64_t offset = 0;  // within the fragment
  std::int64_t offset_in_target = 0;
  std::int64_t count = 0;
  bool whole = false;          // all of the fragment, so that its checksum can be compared
  std::uint64_t checksum = 0;  // of the fragment
};

// Finds tensors of an index, which must outlive it, by name.
class TensorLocator {
 public:
  explicit TensorLocator(const CheckpointIndex& index);
  // Adds the pieces of `target`, number `number`, in order of their elements. Throws Error(checkpoint) when the tensor
  // is missing or has another shape.
  void locate(const StateTarget& target, std::size_t number, std::vector<FilePiece>& pieces) const;

 private:
  const CheckpointIndex& index_;
  std::map<std::pair<std::string, std::string>, const CheckpointTensor*> tensors_;  // by (parameter, state)
};

// Where all targets lie, file by file. Throws as TensorLocator does.
std::vector<FilePiece> locate(const CheckpointIndex& index, std::span<const StateTarget> targets);

}  // namespace ananke
