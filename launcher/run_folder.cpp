#include "launcher/run_folder.h"

#include <google/protobuf/text_format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "ananke/checkpoint.pb.h"
#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/replace_file.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/run_lock.h"
#include "runtime/comm/mesh.h"
#include "runtime/config/job.h"
#include "runtime/config/resume.h"

namespace ananke {
namespace {

using Path = std::filesystem::path;

void write_file(const Path& path, const std::string& text) {
  ReplacedFile file(path);
  errno = 0;
  std::ofstream stream(file.partial(), std::ios::trunc);
  stream << text;
  stream.close();
  if (!stream) {
    fail(ErrorKind::resource, "cannot write {}: {}; check that the run folder can be written and has room",
         path.string(), std::strerror(errno));
  }
  file.commit();
}

[[noreturn]] void refuse_folder(const Path& run_dir, const std::string& why) {
  fail(ErrorKind::resource, "cannot make the run folder {}: {}; choose another run_dir", run_dir.string(), why);
}

}  // namespace

void check_run_folder(const Path& run_dir) {
  Path there = run_dir / "logs";
  std::error_code ignored;
  while (there.has_relative_path() && !std::filesystem::exists(there, ignored)) there = there.parent_path();
  if (!std::filesystem::is_directory(there, ignored)) {
    refuse_folder(run_dir, fmt::format("{} is no folder", there.string()));
  }
  if (::access(there.c_str(), W_OK | X_OK) != 0) {
    refuse_folder(run_dir, fmt::format("{}: {}", there.string(), std::strerror(errno)));
  }
  check_not_held(run_dir);
}

void make_run_folder(const Path& run_dir) {
  std::error_code error;
  std::filesystem::create_directories(run_dir / "logs", error);
  if (error) refuse_folder(run_dir, error.message());
}

void check_unused(const Path& run_dir) {
  const auto found = find_checkpoints(run_dir);
  if (found.empty()) return;
  if (std::ranges::none_of(found, &FoundCheckpoint::complete)) {
    fail(ErrorKind::config,
         "the run folder {} holds {} checkpoints, none of which can be used (the newest, of step {}: {}); choose "
         "another run_dir (--run-dir DIR), or remove {}",
         run_dir.string(), found.size(), found.front().step, found.front().problem,
         checkpoints_folder(run_dir).string());
  }
  fail(ErrorKind::config,
       "the run folder {} holds checkpoints up to step {}; go on with --resume, or choose another "
       "run_dir (--run-dir DIR)",
       run_dir.string(), found.front().step);
}

std::optional<ResumePoint> check_resumable(const Path& run_dir, const LoadedJob& job) {
  const auto found = find_checkpoints(run_dir);
  if (found.empty()) return std::nullopt;
  const auto newest = std::ranges::find_if(found, &FoundCheckpoint::complete);
  if (newest == found.end()) {
    fail(ErrorKind::checkpoint,
         "none of the {} checkpoints under {} can be used (the newest, of step {}: {}); choose another run_dir "
         "(--run-dir DIR) to start anew, or put back what is missing",
         found.size(), run_dir.string(), found.front().step, found.front().problem);
  }
  ResumePoint point{newest->folder, newest->step, "", {}};
  Job before;
  if (!before.ParseFromString(read_index(newest->folder, newest->index_hash).job())) return point;
  point.mesh = to_string(mesh_of(before.mesh()));
  for (const FieldChange& change : changes_of_resume(before, newest->step, job)) {
    point.changes.push_back(to_string(change));
  }
  return point;
}

std::optional<std::uint64_t> newest_complete_checkpoint(const Path& run_dir) {
  const auto found = find_checkpoints(run_dir);
  const auto newest = std::ranges::find_if(found, &FoundCheckpoint::complete);
  return newest == found.end() ? std::nullopt : std::optional(newest->step);
}

void write_run_files(const Path& run_dir, const LoadedJob& job, const Site& site) {
  std::string site_text;
  google::protobuf::TextFormat::PrintToString(site, &site_text);
  write_file(run_dir / "job.textproto", print_job(job));
  write_file(run_dir / "site.textproto", site_text);
  if (job.job.training().force_balanced_routing()) {
    write_file(
        run_dir / "FORCED_BALANCE",
        "training.force_balanced_routing was set: tokens were dealt to experts in turn, whatever the routers said.\n"
        "The times here are of a balanced model; the weights and losses are of none.\n");
  }
}

void write_run_topology(const Path& run_dir, const std::string& text) { write_file(run_dir / "topology.txt", text); }

}  // namespace ananke
