// The run folder as the launcher finds and prepares it: made if missing, judged before anything of it is changed.
#pragma once

#include <filesystem>
#include <string>

namespace ananke {

class Site;
struct LoadedJob;  // runtime/config/job.h

// The folder and its logs. Throws Error(resource) where they cannot be made.
void make_run_folder(const std::filesystem::path& run_dir);

// A run that would begin at step 1 must not meet an earlier one's checkpoints: they would be taken for its own. Throws
// Error(config) where there are some.
void check_unused(const std::filesystem::path& run_dir);

// What a worker would refuse of the newest complete checkpoint, said before any is started: Error(config) listing the
// fields that cannot change. Nothing is said where there is no such checkpoint: the workers judge damaged ones.
void check_resumable(const std::filesystem::path& run_dir, const LoadedJob& job);

bool has_complete_checkpoint(const std::filesystem::path& run_dir);

// job.textproto and site.textproto, as workers and later resumes read them; each whole or not at all. Throws
// Error(resource).
void write_run_files(const std::filesystem::path& run_dir, const LoadedJob& job, const Site& site);

}  // namespace ananke
