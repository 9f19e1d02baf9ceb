// Reading a job: text and --set in, a resolved job out, or every reason why not. No plugin is loaded, nothing is
// started, so a job is checked on a login node.
//
//   LoadedJob loaded = load_job({.file = "job.textproto", .overrides = {"plugins.adamw.lr=1e-3"}, .ranks = 4});
//   std::fputs(print_job(loaded).c_str(), stdout);
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ananke/job.pb.h"
#include "runtime/plugin/catalog.h"

namespace ananke {

class Schema;

struct JobOptions {
  std::filesystem::path file;
  std::vector<std::string> overrides = {};  // "path=value", in order: the last wins
  std::uint32_t ranks = 0;                  // 0: as many as the mesh says
  std::vector<std::filesystem::path> plugin_folders = plugin_search_path();
};

struct LoadedJob {
  // Resolved: every default written out, paths absolute, every plugin named and with its config, resolved.* filled
  // except `started`.
  Job job;
  std::shared_ptr<const Schema> schema;  // of the plugins at hand; for print_job and compare_for_resume
};

// Throws Error(config) that lists every problem found, each as "file:line:column: field is ..., but ...", or
// Error(plugin) when a file that the job names with `library` is refused.
LoadedJob load_job(const JobOptions& options);

// Reads back what print_job wrote into a run folder, bit for bit: nothing is filled in or searched for; the plugins'
// notes are read from resolved.plugins.
LoadedJob load_resolved_job(const std::filesystem::path& file);

// Deterministic text of a job, plugins' configs expanded.
std::string print_job(const LoadedJob& loaded);
std::string print_job(const Job& job, const Schema& schema);

// Serialized config of a plugin, the job's; empty where the job gives none, which stands for the defaults.
std::string_view config_of(const Job& job, std::string_view plugin);

}  // namespace ananke
