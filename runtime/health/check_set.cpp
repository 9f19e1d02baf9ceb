#include "runtime/health/check_set.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "ananke/job.pb.h"
#include "ananke/plugin.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/kernel_text.h"
#include "runtime/base/nearest.h"
#include "runtime/base/read_file.h"
#include "runtime/base/units.h"
#include "runtime/health/children.h"
#include "runtime/health/findings.h"
#include "runtime/health/gpu_reader.h"
#include "runtime/health/report.h"
#include "runtime/plugin/catalog.h"

namespace ananke {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds gpu_deadline{10'000};

// A number of the site's; nothing: "none".
std::optional<double> limit_of(const std::string& text, const CheckSpec& spec, const CheckThreshold& threshold) {
  if (text == "none") return std::nullopt;
  if (threshold.unit == "bytes") return static_cast<double>(parse_bytes(text));
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  fail(ErrorKind::config, "the site's health.threshold for {} ({}) is '{}', which is no number; write one, or \"none\"",
       spec.id, threshold.name, text);
}

void replace(CheckSpec& spec, const HealthThreshold& by) {
  std::vector<std::string> known;
  for (CheckThreshold& threshold : spec.thresholds) {
    known.push_back(threshold.name);
    if (by.value().empty() ? spec.thresholds.size() != 1 : by.value() != threshold.name) continue;
    if (!by.fail().empty()) threshold.fail = limit_of(by.fail(), spec, threshold);
    if (!by.warn().empty()) threshold.warn = limit_of(by.warn(), spec, threshold);
    return;
  }
  if (known.empty())
    fail(ErrorKind::config, "the site's health.threshold names {}, which has none; remove it", spec.id);
  fail(ErrorKind::config, "the site's health.threshold for {} has value '{}', which it does not have{}", spec.id,
       by.value(), suggestion(by.value(), known));
}

// A GPU that others keep busy may well be late, and is no defect.
void blame_use(const CheckSet::Entry& entry, const NodeGpus& gpus, int process, CheckResult& result) {
  if (result.verdict() != FAIL || std::ranges::find(entry.spec.sensors, "gpus") == entry.spec.sensors.end()) return;
  std::string used;
  for (const GpuFacts& gpu : gpus.gpu()) {
    if (is_used_by_others(gpu, process)) used += fmt::format("{}{}", used.empty() ? "" : ", ", gpu.index());
  }
  if (used.empty()) return;
  result.set_cause(IN_USE);
  result.set_reason(fmt::format("{}; others use GPUs {} (gpu.use)", result.reason(), used));
  result.set_advice("wait, or end what uses them");
}

CheckResult result_of(const CheckSet::Entry& entry, const ChildOutcome& outcome, int patience, const NodeGpus& gpus,
                      int process) {
  using End = ChildOutcome::End;
  CheckResult result;
  // Cut short by the end of all time, it has not shown that it hangs.
  const double deadline = std::chrono::duration<double>(entry.spec.deadline * patience).count();
  const bool hangs = outcome.end == End::late && outcome.seconds >= deadline;
  switch (outcome.end) {
    case End::done:
      if (result.ParseFromString(outcome.output)) break;
      result.Clear();
      result.set_reason("what it said is no result");
      break;
    case End::threw: result.set_reason(outcome.output); break;
    case End::crashed:
      result.set_reason(fmt::format("plugin '{}' failed in this check: {}", entry.plugin, outcome.output));
      break;
    case End::late:
      result.set_verdict(hangs ? entry.spec.when_late : UNKNOWN);
      result.set_reason(fmt::format("no answer within {}{}", format_duration(outcome.seconds),
                                    hangs ? "" : ", when the time for all checks was over"));
      blame_use(entry, gpus, process, result);
      break;
    case End::not_begun:
      result.set_reason(outcome.output.empty() ? "there was no time left for it" : outcome.output);
      break;
  }
  result.set_verdict(result.verdict());  // UNKNOWN is written out, too
  result.set_id(entry.spec.id);
  result.set_plugin(entry.plugin);
  result.set_seconds(outcome.seconds);
  return result;
}

NodeGpus gpus_of(const std::filesystem::path& root, int patience, Clock::time_point until) {
  const ChildTask task{gpu_deadline * patience, [&] { return read_node_gpus(root).SerializeAsString(); }};
  const ChildOutcome outcome = run_children({task}, 1, until).front();
  NodeGpus gpus;
  if (outcome.end == ChildOutcome::End::done && gpus.ParseFromString(outcome.output)) return gpus;
  gpus.Clear();
  gpus.set_problem(outcome.end == ChildOutcome::End::late
                       ? fmt::format("NVML did not answer within {}", format_duration(outcome.seconds))
                       : "NVML: " + outcome.output);
  return gpus;
}

// What a check has for the site's support is the node's.
void take_ticket(NodeHealth& node, CheckResult& result) {
  for (int i = result.value_size() - 1; i >= 0; --i) {
    if (result.value(i).name() != "ticket") continue;
    if (node.ticket().empty()) node.set_ticket(result.value(i).text());
    result.mutable_value()->DeleteSubrange(i, 1);
  }
}

}  // namespace

CheckSet::CheckSet(Site site, const std::vector<std::filesystem::path>& folders)
    : site_(std::move(site)), job_(std::make_unique<Job>()) {
  const PluginCatalog catalog(folders);
  for (const FoundPlugin& plugin : catalog.found()) {
    if (plugin.note->role() == Check::role) load(plugin.file, plugin.note->name(), plugin.note->needs());
  }
  for (const RefusedPlugin& plugin : catalog.refused()) {
    // Its role is not known; a check is taken for one by its name. One that was left out is one of GPUs.
    if (!plugin.name.ends_with("_checks")) continue;
    const bool left_out = plugin.file.extension() == ".missing" && site_.hardware().gpus() == 0;
    add_problem("plugin." + plugin.name, left_out ? SKIPPED : UNKNOWN, plugin.reason);
  }
  take_thresholds();
  look_at_skipped();
}

CheckSet::~CheckSet() = default;

void CheckSet::add_problem(const std::string& id, HealthVerdict verdict, const std::string& reason) {
  const bool skipped = std::ranges::find(site_.health().skip(), id) != site_.health().skip().end();
  CheckResult& result = problems_.emplace_back();
  result.set_id(id);
  result.set_verdict(skipped ? SKIPPED : verdict);
  result.set_reason(reason);
}

void CheckSet::load(const std::filesystem::path& file, const std::string& name, const std::string& needs) {
  const std::string id = "plugin." + name;
  if (!needs.empty()) {
    void* library = dlopen(needs.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) {
      const bool expected = site_.hardware().gpus() > 0;
      return add_problem(
          id, expected ? UNKNOWN : SKIPPED,
          fmt::format("its checks need {}, which is not here{}", needs, expected ? ", and the site has GPUs" : ""));
    }
    dlclose(library);
  }
  try {
    plugins_.load(name, file);
    const RoleContext context{.job = *job_, .site = site_, .mesh = {}};
    const std::shared_ptr<Check> check = plugins_.create<Check>(name, context, "");
    const PluginGuard guard = plugins_.guard(name);
    for (CheckSpec& spec : guard.call("checks", [&] { return check->checks(); })) {
      const auto same = std::ranges::find(entries_, spec.id, [](const Entry& entry) { return entry.spec.id; });
      if (same != entries_.end()) {
        add_problem(spec.id, UNKNOWN, fmt::format("plugins '{}' and '{}' both have it", same->plugin, name));
        continue;
      }
      const bool skipped = std::ranges::find(site_.health().skip(), spec.id) != site_.health().skip().end();
      entries_.push_back({std::move(spec), name, check, guard, skipped});
    }
  } catch (const Error& error) {
    add_problem(id, UNKNOWN, error.what());
  }
}

void CheckSet::take_thresholds() {
  // Judged over all nodes, not here (outliers.h).
  const std::vector<std::string> of_all = {"peers", "history"};
  std::vector<std::string> known = of_all;
  for (const Entry& entry : entries_) known.push_back(entry.spec.id);
  for (const HealthThreshold& threshold : site_.health().threshold()) {
    const auto entry = std::ranges::find(entries_, threshold.check(), [](const Entry& one) { return one.spec.id; });
    if (entry != entries_.end()) {
      replace(entry->spec, threshold);
    } else if (std::ranges::find(of_all, threshold.check()) == of_all.end()) {
      add_problem("site." + threshold.check(), WARN,
                  fmt::format("the site has a threshold for '{}', and no plugin has such a check{}", threshold.check(),
                              suggestion(threshold.check(), known)));
    }
  }
}

// A misspelt id would be made all the same. Those of a plugin that could not be loaded nobody knows.
void CheckSet::look_at_skipped() {
  const auto is_plugin = [](const CheckResult& problem) { return problem.id().starts_with("plugin."); };
  if (std::ranges::any_of(problems_, is_plugin)) return;
  std::vector<std::string> known;
  for (const Entry& entry : entries_) known.push_back(entry.spec.id);
  for (const std::string& id : site_.health().skip()) {
    if (std::ranges::find(known, id) != known.end() || id.starts_with("plugin.") || id.starts_with("site.")) continue;
    add_problem(
        "site." + id, WARN,
        fmt::format("the site skips '{}' (health.skip), and no plugin has such a check{}", id, suggestion(id, known)));
  }
}

NodeHealth CheckSet::run(const CheckOptions& options) const {
  const milliseconds limit =
      parse_duration(options.level == QUICK ? site_.health().quick_deadline() : site_.health().full_deadline());
  const Clock::time_point until = Clock::now() + limit * options.patience;
  NodeHealth node;
  node.set_node(options.node);
  node.set_time(utc_now());
  node.set_begin(since_1970());
  std::string boot = read_file(options.root / "proc/sys/kernel/random/boot_id").value_or("");
  node.set_boot(boot.substr(0, boot.find('\n')));
  const NodeGpus gpus = gpus_of(options.root, options.patience, until);
  const int process = options.process != 0 ? options.process : getpid();
  std::vector<CheckResult> results(entries_.size());
  for (const bool quick : {true, false}) {
    std::vector<ChildTask> tasks;
    std::vector<std::size_t> which;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const Entry& entry = entries_[i];
      if (entry.skipped || entry.spec.level > options.level || (entry.spec.level == QUICK) != quick) continue;
      which.push_back(i);
      tasks.push_back({entry.spec.deadline * options.patience, [&entry, &gpus, &options, process, this] {
                         const CheckContext context{
                             site_,   options.level, options.root,    options.node,          options.user,
                             process, gpus,          options.earlier, entry.spec.thresholds, entry.spec.deadline};
                         return entry.guard.call("run", [&] { return entry.check->run(entry.spec.id, context); })
                             .SerializeAsString();
                       }});
    }
    const auto outcomes = run_children(tasks, quick ? options.parallel : 1, until);
    for (std::size_t i = 0; i < which.size(); ++i) {
      results[which[i]] = result_of(entries_[which[i]], outcomes[i], options.patience, gpus, process);
    }
  }
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].skipped) {
      results[i].set_id(entries_[i].spec.id);
      results[i].set_verdict(SKIPPED);
      results[i].set_reason("the site's profile says so (health.skip)");
    }
    if (results[i].id().empty()) continue;  // of a higher level
    take_ticket(node, results[i]);
    *node.add_check() = std::move(results[i]);
  }
  for (const CheckResult& problem : problems_) *node.add_check() = problem;
  node.set_end(since_1970());
  node.set_verdict(verdict_of(node));
  return node;
}

HealthVerdict verdict_of(const NodeHealth& node) {
  HealthVerdict verdict = SKIPPED;
  for (const CheckResult& check : node.check()) verdict = worse(verdict, check.verdict());
  return verdict == SKIPPED ? UNKNOWN : verdict;
}

}  // namespace ananke
