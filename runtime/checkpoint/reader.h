// A checkpoint as one process sees it, without peers: for export, and for looking at what a run left behind.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/index.h"
#include "runtime/checkpoint/shard_file.h"

namespace ananke {

// A checkpoint folder, or the newest usable one of a run folder (or of its checkpoints folder). Every file's hash has
// been compared when the constructor returns, so that reading is safe.
class CheckpointReader {
 public:
  // Throws Error(checkpoint) naming what is wrong: with the folder, or with every checkpoint of the run. Newer ones
  // that are not usable are passed over with a warning.
  explicit CheckpointReader(const std::filesystem::path& folder_or_run);
  ~CheckpointReader();

  const std::filesystem::path& folder() const noexcept { return folder_; }
  const CheckpointIndex& index() const noexcept { return *index_; }
  const Job& job() const noexcept { return *job_; }  // plugins' configs in it are opaque

  // Elements [begin, begin + out.size()) of a state of a parameter of that shape. Throws Error(checkpoint) when there
  // is none or it has another shape. One thread at a time.
  void read(const std::string& parameter, const std::string& state, const Shape& shape, std::int64_t begin,
            std::span<float> out);

 private:
  void open(const std::filesystem::path& folder);

  std::filesystem::path folder_;
  std::unique_ptr<CheckpointIndex> index_;
  std::unique_ptr<Job> job_;
  std::unique_ptr<TensorLocator> tensors_;
  std::map<int, ShardReader> files_;  // open ones, by index
};

// Whether the folder itself is a checkpoint (complete or not), rather than a run's folder.
bool is_checkpoint_folder(const std::filesystem::path& folder);
// Parsed out of its index. Throws Error(checkpoint).
Job read_checkpoint_job(const CheckpointIndex& index);

struct CheckpointReport {
  std::uint64_t files = 0, fragments = 0, bytes = 0;  // that were compared
  std::vector<std::string> problems;                  // empty: all is as it was written
};
// Compares everything that can be: marker, index, every file's size and hash, every fragment's place, shape and
// checksum. Holds one fragment in memory at a time. A damaged file is named and not opened further.
CheckpointReport verify_checkpoint(const std::filesystem::path& folder);

}  // namespace ananke
