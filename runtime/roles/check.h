// Role "check": what `ananke health` asks of a node. A plugin may hold several checks; all plugins of this role that
// are found are asked, no job names them.
//
//   checks()                     once: ids, levels, deadlines, thresholds, what they read
//   run(id, context)             each check in a process of its own, forked; several at once
//
// Nothing that a check does reaches another one: a check that hangs is killed at its deadline and abandoned, one that
// throws or crashes is UNKNOWN, with the plugin named. A check reads below context.root, changes nothing, and never
// answers PASS for what it could not read. The site's profile is context.site.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "ananke/health.pb.h"
#include "runtime/roles/context.h"

namespace ananke {

// From where on a value is bad. The site may say otherwise.
struct CheckThreshold {
  std::string name;  // "free"
  std::string unit;  // "bytes": the site may write "75 GB"
  bool low_is_bad = false;
  std::optional<double> fail, warn;  // low_is_bad: below; else above
  std::string meaning;               // for `ananke health --list`
};

struct CheckSpec {
  std::string id;  // "mem.numa_cpu": what the site's profile and reports call it
  std::string description;
  HealthLevel level = QUICK;                 // the least at which it is made
  std::chrono::milliseconds deadline{5000};  // from its start
  HealthVerdict when_late = UNKNOWN;         // FAIL where it is the defect itself that no answer comes
  std::vector<CheckThreshold> thresholds = {};
  // What its verdict rests on, relative to the root, with * for any name; "gpus": NVML. Where one of these is gone, it
  // is not PASS.
  std::vector<std::string> sensors = {};
};

struct CheckContext {
  const Site& site;
  HealthLevel level = QUICK;
  std::filesystem::path root;  // of proc, sys and dev
  std::string node;            // its name
  unsigned user = 0;
  int process = 0;                 // of `ananke health`
  const NodeGpus& gpus;            // read once for all checks
  const NodeHealth* earlier = {};  // of this node since its boot; null: none is known
  // The thresholds of this check as the site has them.
  const std::vector<CheckThreshold>& thresholds;
  std::chrono::milliseconds deadline{};
};

class Check {
 public:
  static constexpr const char* role = "check";
  virtual ~Check() = default;
  virtual std::vector<CheckSpec> checks() const = 0;
  // `id`: one of those. What is thrown makes the check UNKNOWN, with its text. Findings (runtime/health/findings.h)
  // makes results.
  virtual CheckResult run(const std::string& id, const CheckContext& context) = 0;
};

}  // namespace ananke
