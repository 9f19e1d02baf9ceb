// Checkpoints: the training state of all ranks as one folder per step, written so that a kill at any moment leaves
// either a complete folder or one that is recognised as incomplete.
//
//   run_dir/checkpoints/step-00000100.partial.3f9c/   while it is being written
//   run_dir/checkpoints/step-00000100/                rank-0000.h5 ... index.json COMPLETE
//
// A file of a rank is HDF5: dataset /<parameter>/<state>, f32 [count], with attributes begin (first element within the
// parameter), shape (of the whole parameter) and checksum (XXH3-64 of the bytes). index.json is a CheckpointIndex
// (proto/ananke/checkpoint.proto); COMPLETE names its hash. Every file and folder is synced before the next one that
// vouches for it is written, and the folder gets its final name last.
//
// All tensors are f32. Who holds them on a device hands them over and takes them back piece by piece.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "runtime/comm/rendezvous.h"
#include "runtime/tensor/tensor.h"

namespace ananke {

class Job;              // proto/ananke/job.proto
class CheckpointIndex;  // proto/ananke/checkpoint.proto
struct Verdict;         // checkpoint/verdict.h

// Elements [begin, begin + count), row-major, of the tensor `state` ("weight", or an optimizer's "exp_avg") of a
// parameter. One per (parameter, state) and rank.
template <class Element>
struct StatePiece {
  std::string parameter;  // Hugging Face name
  std::string state;
  Shape shape;  // of the whole parameter
  std::int64_t begin = 0;
  std::int64_t count = 0;
  Element* data = nullptr;  // f32 [count], the caller's; null: `move` is called
  // For elements [first, first + numbers.size()) of the piece, at most `at_once`: gives them where they are to be
  // written, takes them where they were read. On the thread that saves or loads.
  static constexpr std::int64_t at_once = std::int64_t{16} << 20;
  using Number = std::conditional_t<std::is_const_v<Element>, float, const float>;
  std::function<void(std::int64_t first, std::span<Number> numbers)> move = {};
};
using StateFragment = StatePiece<const float>;  // to be written
using StateTarget = StatePiece<float>;          // to be read into

// What else a resumed run needs to know.
struct TrainingProgress {
  std::uint64_t step = 0;  // optimizer steps done
  std::uint64_t total_valid_tokens = 0;
  std::uint64_t optimizer_steps = 0;  // updates applied: steps minus skipped ones
  std::string batches_position;       // the batches role's own
};

struct LoadedState {
  TrainingProgress progress;
  std::filesystem::path folder;
  std::shared_ptr<const Job> job;  // the resolved job that wrote it; shared since a check may keep it
  std::vector<std::string>
      passed_over;  // newer folders that could not be used, with the reason (the same on all ranks)
};

// Called on every rank with what was chosen, before any tensor is read; throws to refuse the resume. Must be a pure
// function of its argument and the job, so that all ranks agree.
using ResumeCheck = std::function<void(const LoadedState&)>;

// Whose checkpoints these are where several jobs might write to one run folder.
struct CheckpointOwner {
  std::string mark;               // in the names of unfinished folders: others' are left alone
  std::function<void()> confirm;  // throws where this job may no longer write; rank 0 asks before it changes anything
};

// One per rank and run; the methods are collective: every rank calls them in the same order, from one thread.
class Checkpoints {
 public:
  // `name` opens the keys of all exchanges: two objects of one rendezvous need two names. `ranks` must outlive this.
  Checkpoints(std::filesystem::path run_dir, Rendezvous& ranks, std::string name = "checkpoint",
              CheckpointOwner owner = {});

  // Returns on every rank once the checkpoint is durable; then older ones are removed until `keep_last` are left
  // (0: all stay). A rank that holds copies of what others write (replica > 0) passes no fragments and writes no file.
  // Throws Error(checkpoint) on every rank alike, naming the rank, the file and the reason, when any rank could not
  // write; what was complete before stays as it was. Leftovers of earlier attempts are removed first.
  void save(const TrainingProgress& progress, const Job& job, std::span<const StateFragment> fragments, int keep_last);

  // Fills `targets` from the newest complete checkpoint, whichever mesh wrote it. Rank 0 chooses; every file's size and
  // hash is checked before it is opened; a folder that any rank finds damaged is named in a warning and passed over by
  // all ranks. Nothing when no checkpoint was ever completed here. Throws Error(checkpoint) on every rank alike when
  // there are some but none is usable, or when the chosen one is of another model (naming both shapes) or lacks a
  // tensor; the targets' contents are then unspecified.
  std::optional<LoadedState> load_newest(std::span<const StateTarget> targets, const ResumeCheck& check = {});

 private:
  void confirm() const {
    if (owner_.confirm) owner_.confirm();
  }
  std::vector<std::string> exchange(std::string_view what, std::string blob, std::span<const int> members = {});
  Verdict judge(std::string_view what, const Verdict& own);
  std::filesystem::path begin_folder(std::uint64_t step);
  CheckpointIndex write_own(const std::filesystem::path& folder, std::span<const StateFragment> fragments);
  std::vector<CheckpointIndex> gather_parts(CheckpointIndex own);
  void complete(const std::filesystem::path& partial, const TrainingProgress& progress, const Job& job,
                std::span<const CheckpointIndex> parts);
  Verdict verify(LoadedState& state, const std::string& index_hash, std::span<const StateTarget> targets,
                 const ResumeCheck& check, CheckpointIndex& index);

  std::filesystem::path run_dir_;
  std::filesystem::path folder_;  // run_dir/checkpoints
  Rendezvous& ranks_;
  std::string name_;
  CheckpointOwner owner_;
  std::uint64_t calls_ = 0;  // numbers the exchanges: a key serves once
};

}  // namespace ananke
