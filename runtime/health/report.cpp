#include "runtime/health/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "ananke/version.h"
#include "runtime/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/base/units.h"
#include "runtime/health/check_set.h"
#include "runtime/health/children.h"
#include "runtime/health/findings.h"
#include "runtime/health/history.h"
#include "runtime/health/outliers.h"

namespace ananke {
namespace {

constexpr std::chrono::seconds history_deadline{5};
constexpr double skew_warn = 0.1, skew_fail = 1;  // seconds
constexpr std::size_t longest_reason = 120;       // of a drained node, which sinfo shows in a column

// The node's clock lies between: it began after it was asked, and ended before its answer was heard. What is sure of
// the difference is judged, so a slow start accuses nobody.
void judge_clock(NodeHealth* node, const AskedAt& asked) {
  if (asked.end == 0) return;
  const double ahead = node->end() - asked.end, behind = asked.begin - node->begin();
  const double skew = std::max({ahead, behind, 0.0});
  CheckResult& result = *node->add_check();
  result.set_id("time.skew");
  result.set_verdict(skew > skew_fail ? FAIL : skew > skew_warn ? WARN : PASS);
  result.set_cause(DEFECT);
  result.set_reason(skew <= skew_warn ? "its clock is that of the node that asked, as far as that can be told"
                                      : fmt::format("its clock is at least {:.2f} s {} that of the node that asked",
                                                    skew, ahead > behind ? "ahead of" : "behind"));
  if (skew > skew_warn) result.set_advice("have the site look at its time service (chrony, ntp)");
}

std::string quoted(const std::string& text) {
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

// Of a node with a defect: who is merely used, or asked with wrong limits, is not to be drained.
// Checks that are bad on so many nodes that they share a cause: how many.
using CommonCauses = std::map<std::string, int>;

// No node is drained for what it shares with many.
std::string drain_reason(const NodeHealth& node, const CommonCauses& common) {
  std::string reason;
  for (const CheckResult& check : node.check()) {
    if (check.verdict() != FAIL || check.cause() != DEFECT || common.contains(check.id())) continue;
    reason += fmt::format("{}{}: {}", reason.empty() ? "ananke: " : " | ", check.id(), check.reason());
  }
  reason = printable(reason);
  if (reason.size() > longest_reason) reason = reason.substr(0, longest_reason - 3) + "...";
  return reason;
}

// The same on many nodes is rather one cause outside of them.
CommonCauses find_common_causes(const HealthReport& report) {
  CommonCauses counts;
  for (const NodeHealth& node : report.node()) {
    for (const CheckResult& check : node.check()) {
      if (is_bad(check.verdict())) ++counts[check.id()];
    }
  }
  std::erase_if(counts, [&](const auto& one) { return one.second < 4 || 4 * one.second < report.node_size(); });
  return counts;
}

void note(const CommonCauses& common, HealthReport* report) {
  for (const auto& [id, count] : common) {
    report->add_note(
        fmt::format("{} is bad on {} of {} nodes: rather one cause that they share (file system, switch, rack, this "
                    "environment) than "
                    "so many bad nodes; look there before any is drained",
                    id, count, report->node_size()));
  }
}

void add_answer(const NodeAnswer& answer, const AskedAt& asked, HealthReport* report) {
  NodeHealth& node = *report->add_node();
  if (answer.health) {
    node = *answer.health;
    node.set_node(answer.node);
    judge_clock(&node, asked);
    return;
  }
  node.set_node(answer.node);
  CheckResult& result = *node.add_check();
  result.set_id("report");
  result.set_verdict(UNKNOWN);
  result.set_reason(answer.why_not);
}

// In a process of its own: a file system that hangs must not keep the verdict. Nothing, with a note, where it fails.
std::optional<std::string> beside(const std::string& folder, const char* what, std::function<std::string()> work,
                                  HealthReport* report) {
  using End = ChildOutcome::End;
  const auto end = std::chrono::steady_clock::now() + history_deadline + std::chrono::seconds(1);
  const ChildOutcome outcome = run_children({{history_deadline, std::move(work)}}, 1, end).at(0);
  if (outcome.end == End::done) return outcome.output;
  report->add_note(fmt::format("the history in {} is not {}: {}", folder, what,
                               outcome.end == End::late
                                   ? fmt::format("no answer within {}", format_duration(outcome.seconds))
                                   : outcome.output));
  return std::nullopt;
}

std::map<std::string, std::vector<NodeHealth>> histories(const std::string& folder, HealthReport* report) {
  std::map<std::string, std::vector<NodeHealth>> found;
  if (folder.empty()) return found;
  const auto read_all = [&] {
    HealthReport all;
    for (const NodeHealth& node : report->node()) {
      for (NodeHealth& before : read_history(folder, node.node())) {
        before.set_node(node.node());
        *all.add_node() = std::move(before);
      }
    }
    return all.SerializeAsString();
  };
  HealthReport all;
  if (const auto text = beside(folder, "compared with", read_all, report)) all.ParseFromString(*text);
  for (NodeHealth& before : *all.mutable_node()) found[before.node()].push_back(std::move(before));
  return found;
}

// A shell takes it for one word.
bool is_plain(const std::string& name) {
  return !name.empty() && std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
}

void add_lists(const Site& site, const CommonCauses& common, HealthReport* report) {
  for (const NodeHealth& node : report->node()) {
    if (is_bad(node.verdict())) {
      report->set_exclude(report->exclude() + (report->exclude().empty() ? "" : ",") + node.node());
    }
    const std::string reason = drain_reason(node, common);
    if (node.verdict() != FAIL || reason.empty() || !is_plain(node.node())) continue;
    report->add_drain_command(
        replaced(replaced(site.health().drain_command(), "%h", node.node()), "%r", quoted(reason)));
  }
}

}  // namespace

double since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool is_bad(HealthVerdict verdict) { return verdict == FAIL || verdict == UNKNOWN; }

HealthReport make_report(const std::vector<NodeAnswer>& answers, const Site& site, HealthLevel level,
                         const std::string& job, const AskedAt& asked) {
  HealthReport report;
  report.set_version(ANANKE_VERSION);
  report.set_site(site.name());
  report.set_level(level);
  report.set_time(utc_now());
  if (!job.empty()) report.set_job(job);
  bool any = false;
  for (const NodeAnswer& answer : answers) {
    any = any || answer.health;
    add_answer(answer, asked, &report);
  }
  if (any) {
    compare_with_peers(&report, site);
    const auto before = histories(site.health().history(), &report);
    compare_with_history(&report, before, site);
  }
  HealthVerdict verdict = PASS;
  for (NodeHealth& node : *report.mutable_node()) {
    node.set_verdict(verdict_of(node));
    verdict = worse(verdict, node.verdict());
  }
  report.set_verdict(any ? verdict : UNKNOWN);
  report.set_exit_code(!any ? 2 : is_bad(verdict) ? 1 : 0);
  const CommonCauses common = find_common_causes(report);
  add_lists(site, common, &report);
  note(common, &report);
  return report;
}

void keep_history(HealthReport* report, const Site& site) {
  if (site.health().history().empty()) return;
  const auto add_all = [&] {
    for (const NodeHealth& node : report->node()) {
      if (node.has_begin()) add_to_history(site.health().history(), node);  // else it did not answer
    }
    return std::string();
  };
  beside(site.health().history(), "kept", add_all, report);
}

}  // namespace ananke
