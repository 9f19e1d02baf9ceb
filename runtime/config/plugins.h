// Which plugins a job uses: those it names, those its optimizer rules name, and the built-in ones it needs.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/problem.h"
#include "runtime/config/schema.h"

namespace ananke {

class Job;

// The plugins that a job may name; the schema knows why others may not be.
struct PluginsAtHand {
  Schema schema;
  std::vector<std::filesystem::path> folders;

  // Why there is no plugin of that name: refused with the reason, or the nearest name and where it was searched.
  std::string why_missing(std::string_view name, std::string_view role = "") const;
};

// `libraries`, named by the job, come before what is found in `folders`: a found plugin of the same name, message or
// proto file makes way. Throws Error(plugin) when a library is refused, or two libraries clash.
std::unique_ptr<PluginsAtHand> find_plugins(const std::vector<std::filesystem::path>& libraries,
                                            const std::vector<std::filesystem::path>& folders);

// Gives every entry of job.plugins its name and config (defaults where it has none), adds the plugins that the
// optimizer rules name, then backend_host and fsdp where no plugin has their role.
Problems complete_plugins(const PluginsAtHand& at_hand, Job* job);

// Fills job.resolved.plugins: name, role, path and hash of every plugin of the job. Reads the files.
void resolve_plugins(const PluginsAtHand& at_hand, Job* job);

}  // namespace ananke
