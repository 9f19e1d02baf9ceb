// The run folder as the launcher finds and prepares it: made if missing, judged before anything of it is changed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace ananke {

class Site;
struct LoadedJob;  // runtime/config/job.h

// What make_run_folder and a launcher's own files need, without making anything. Throws Error(resource), or
// Error(config) where a launcher holds the folder.
void check_run_folder(const std::filesystem::path& run_dir);

// The folder and its logs. Throws Error(resource) where they cannot be made.
void make_run_folder(const std::filesystem::path& run_dir);

// A run that would begin at step 1 must not meet an earlier one's checkpoints: they would be taken for its own. Throws
// Error(config) where there are some.
void check_unused(const std::filesystem::path& run_dir);

// Where a resumed run goes on.
struct ResumePoint {
  std::filesystem::path folder;  // of the newest complete checkpoint
  std::uint64_t step = 0;
  std::string mesh;                  // that wrote it
  std::vector<std::string> changes;  // of the job since, a line each
};

// What a worker would refuse of the newest complete checkpoint, said before any is started: Error(config) listing the
// fields that cannot change, Error(checkpoint) where there are checkpoints and none is complete. Nothing where there is
// none at all. Bytes are not read: the workers compare checksums.
std::optional<ResumePoint> check_resumable(const std::filesystem::path& run_dir, const LoadedJob& job);

// Its step.
std::optional<std::uint64_t> newest_complete_checkpoint(const std::filesystem::path& run_dir);

// job.textproto and site.textproto, as workers and later resumes read them; each whole or not at all. Throws
// Error(resource).
void write_run_files(const std::filesystem::path& run_dir, const LoadedJob& job, const Site& site);
// topology.txt: which ranks are on which nodes. Likewise.
void write_run_topology(const std::filesystem::path& run_dir, const std::string& text);

}  // namespace ananke
