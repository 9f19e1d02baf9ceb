#include "launcher/run_plan.h"

#include <cstdio>
#include <filesystem>

#include "launcher/child_process.h"
#include "launcher/run_folder.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/checkpoint/run_lock.h"
#include "runtime/config/job.h"
#include "runtime/engine/dry_run.h"

namespace ananke {
namespace {

using Path = std::filesystem::path;

void print_line(const char* title, const std::string& text) { std::printf("%-14s %s\n", title, text.c_str()); }

// The folder, and the room on its file system.
std::string folder_text(const Path& run_dir, std::uint64_t checkpoint_bytes) {
  std::error_code ignored;
  Path there = run_dir;
  while (there.has_relative_path() && !std::filesystem::exists(there, ignored)) there = there.parent_path();
  std::string text = run_dir.string() + (there == run_dir ? ", which is there" : ", which would be made");
  std::error_code unknown;
  const std::filesystem::space_info space = std::filesystem::space(there, unknown);
  if (const std::optional<RunHolder> holder = holder_of_run(run_dir)) {
    text += fmt::format(", held by {}: {}", holder->name,
                        holder->life == Life::gone ? "which is gone, so it would be taken over"
                                                   : "it would be waited for, up to a minute, for a sign of life");
  }
  if (unknown) return text;
  text += fmt::format("; {} free", format_bytes(space.available));
  return space.available < checkpoint_bytes ? text + ", LESS THAN ONE CHECKPOINT NEEDS" : text;
}

std::string start_text(const Job& job, const std::optional<ResumePoint>& point, bool resume) {
  if (point) {
    return fmt::format("after step {} of {}, from {} (mesh {}); its checksums are compared when it is read",
                       point->step, job.training().steps(), point->folder.string(), point->mesh);
  }
  const std::string weights =
      job.initial_weights().empty() ? "weights made from the seed" : "weights from " + job.initial_weights();
  return fmt::format("at step 1{}, {}", resume ? ", since there is no checkpoint to resume from" : "", weights);
}

void print_plan(const Job& job, const Site& site, const std::optional<ResumePoint>& point, bool resume) {
  const DryRun plan = dry_run(job, site);
  std::printf("\n%s\n%s", plan.tables.c_str(), plan.plan.c_str());
  print_line("run folder", folder_text(std::filesystem::absolute(job.run_dir()), plan.checkpoint_bytes));
  print_line("would start", start_text(job, point, resume));
  for (const std::string& change : point ? point->changes : std::vector<std::string>()) {
    print_line("changed", change);
  }
  std::printf("dry run: nothing was started or written\n");
}

}  // namespace

int ask_plugins(const LoadedJob& loaded, const Site& site) {
  const int refused = run_in_child("the check of the job", [&] { dry_run(loaded.job, site); });
  if (refused != static_cast<int>(ErrorKind::plugin)) return refused;
  std::printf("note: the job's plugins cannot be loaded on this node (see above), so they are not asked\n");
  return 0;
}

int print_run_plan(const LoadedJob& loaded, const Site& site, bool resume) {
  const Job& job = loaded.job;
  const Path run_dir = std::filesystem::absolute(job.run_dir());
  check_run_folder(run_dir);
  std::optional<ResumePoint> point;
  if (resume) {
    point = check_resumable(run_dir, loaded);
  } else {
    check_unused(run_dir);
  }
  return run_in_child("the dry run", [&] { print_plan(job, site, point, resume); });
}

}  // namespace ananke
