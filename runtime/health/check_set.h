// All checks that there are, and what they say of this node.
//
//   const CheckSet checks(site, plugin_search_path());
//   const NodeHealth node = checks.run({.level = QUICK, .node = host_name(), .user = getuid()});
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "ananke/health.pb.h"
#include "ananke/site.pb.h"
#include "runtime/plugin/registry.h"
#include "runtime/roles/check.h"

namespace ananke {

class Job;

struct CheckOptions {
  HealthLevel level = QUICK;
  std::filesystem::path root = "/";
  std::string node = {};
  unsigned user = 0;
  int process = 0;                      // of who asks, as the root's proc has it; 0: this one
  const NodeHealth* earlier = nullptr;  // of this node since its boot
  int parallel = 8;                     // checks of level QUICK at once; the others have the node for themselves
  int patience = 1;                     // times every deadline: on a machine that is busy with something else
};

class CheckSet {
 public:
  struct Entry {
    CheckSpec spec;  // with the site's thresholds
    std::string plugin;
    std::shared_ptr<Check> check;
    PluginGuard guard;
    bool skipped = false;  // by the site
  };

  // Loads every plugin of role "check" in the folders. One that cannot be loaded is a result in every run, not an
  // error. Throws Error(config) for a threshold of the site that is no number or names a value that its check does not
  // have.
  CheckSet(Site site, const std::vector<std::filesystem::path>& folders);
  ~CheckSet();

  const std::vector<Entry>& entries() const { return entries_; }
  // Never throws for what it finds. For a process without other threads: every check is a process of its own.
  NodeHealth run(const CheckOptions& options) const;

 private:
  void load(const std::filesystem::path& file, const std::string& name, const std::string& needs);
  void take_thresholds();
  void look_at_skipped();
  void add_problem(const std::string& id, HealthVerdict verdict, const std::string& reason);

  const Site site_;
  std::unique_ptr<Job> job_;  // an empty one: a RoleContext has one
  PluginRegistry plugins_;
  std::vector<Entry> entries_;
  std::vector<CheckResult> problems_;
};

// The worst of the node's checks; UNKNOWN where none is PASS or worse.
HealthVerdict verdict_of(const NodeHealth& node);

}  // namespace ananke
