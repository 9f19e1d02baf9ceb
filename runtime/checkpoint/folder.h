// A run's checkpoint folders: their names, and which are complete. No peers, no HDF5.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace ananke {

class CheckpointFile;  // proto/ananke/checkpoint.proto
class CheckpointIndex;

std::filesystem::path checkpoints_folder(const std::filesystem::path& run_dir);  // run_dir/checkpoints
std::string step_folder_name(std::uint64_t step);                                // "step-00000100"
std::string shard_file_name(int rank);                                           // "rank-0003.h5"

struct FoundCheckpoint {
  std::filesystem::path folder;
  std::uint64_t step = 0;
  std::string index_hash;   // empty when the marker could not be read
  std::uint64_t bytes = 0;  // of all files the index names
  std::string problem;      // why it cannot be used; empty when marker, index and the files' sizes agree
  bool complete() const noexcept { return problem.empty(); }
};

// Every step-N folder of a run, newest first; none where the run has no checkpoints. Reads markers, indexes and file
// sizes; only the loader hashes the files. Foreign files and folders are left out. Throws Error(checkpoint) where the
// folder itself cannot be read.
std::vector<FoundCheckpoint> find_checkpoints(const std::filesystem::path& run_dir);
// One folder, whatever its name: a checkpoint may have been copied. Never throws for what is wrong with it.
FoundCheckpoint inspect_checkpoint(const std::filesystem::path& folder);
// Names of the folders in which somebody writes a checkpoint, or wrote one when it ended.
std::vector<std::string> unfinished_checkpoints(const std::filesystem::path& run_dir);
// Whether a folder of this name is from an attempt that did not end, or on its way out.
bool is_leftover(const std::string& folder_name);

// Parsed, after comparing its hash with the marker's. Throws Error(checkpoint) with what differs.
CheckpointIndex read_index(const std::filesystem::path& folder, const std::string& hash);
// Reads the whole file and compares its hash with the index's. Throws Error(checkpoint) naming the file and both.
void check_file_hash(const std::filesystem::path& folder, const CheckpointFile& file);
// Writes index.json, then the marker that vouches for it, each durable before the next. Returns the index's hash.
std::string write_index(const std::filesystem::path& folder, const CheckpointIndex& index);

// The name of a new folder to write a checkpoint in; `mark` (which may be empty) says whose.
std::filesystem::path partial_folder(const std::filesystem::path& checkpoints, std::uint64_t step,
                                     std::string_view mark);
// Renames every folder that somebody writes a checkpoint in, so that it never gets its final name, and removes what can
// be removed. Throws Error(checkpoint) where one cannot be renamed.
void retire_unfinished(const std::filesystem::path& checkpoints);
// The next two only warn: what stays is tried again at the next save. Of unfinished folders only those of this mark.
void remove_leftovers(const std::filesystem::path& checkpoints, std::string_view mark) noexcept;
// Keeps the newest `keep_last` complete checkpoints among those up to `step`, and all of later steps; 0 keeps all.
void remove_older(const std::filesystem::path& run_dir, std::uint64_t step, int keep_last) noexcept;

}  // namespace ananke
