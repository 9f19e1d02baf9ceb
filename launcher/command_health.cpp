// `ananke health`: how this node is, or all nodes of the allocation that this runs in; and `ananke health-node`, the
// task on each of them.
#include <unistd.h>

#include <boost/program_options.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "launcher/command.h"
#include "launcher/command_options.h"
#include "launcher/output.h"
#include "launcher/slurm/allocation.h"
#include "launcher/slurm/command.h"
#include "launcher/slurm/health_step.h"
#include "runtime/base/error.h"
#include "runtime/base/kernel_text.h"
#include "runtime/base/process.h"
#include "runtime/base/read_file.h"
#include "runtime/base/text_table.h"
#include "runtime/base/units.h"
#include "runtime/config/site.h"
#include "runtime/health/check_set.h"
#include "runtime/health/children.h"
#include "runtime/health/findings.h"
#include "runtime/health/gpu_reader.h"
#include "runtime/health/history.h"
#include "runtime/health/report.h"
#include "runtime/plugin/catalog.h"

namespace ananke {
namespace {

namespace po = boost::program_options;
using Clock = std::chrono::steady_clock;

constexpr int no_verdict = 2;

struct HealthArguments {
  std::string site = "local", level = "quick", format = "text", root, record;
  bool list = false, here = false, drain = false;
};

HealthLevel level_named(std::string name) {
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  HealthLevel level = QUICK;
  if (!HealthLevel_Parse(name, &level)) fail(ErrorKind::usage, "--level {} is none of quick, full, burn", name);
  return level;
}

std::string node_name() {
  const char* slurm = std::getenv("SLURMD_NODENAME");
  return slurm && *slurm ? slurm : host_name();
}

// A file system that hangs must not hold up the checks, one of which will say so.
std::vector<NodeHealth> history_of(const Site& site, const std::string& node) {
  if (site.health().history().empty()) return {};
  const ChildTask task{std::chrono::seconds(3), [&] {
                         HealthReport all;
                         for (const NodeHealth& one : read_history(site.health().history(), node))
                           *all.add_node() = one;
                         return all.SerializeAsString();
                       }};
  const ChildOutcome outcome = run_children({task}, 1, Clock::now() + task.deadline).front();
  HealthReport all;
  if (outcome.end != ChildOutcome::End::done || !all.ParseFromString(outcome.output)) return {};
  return {all.node().begin(), all.node().end()};
}

NodeHealth check_here(const Site& site, HealthLevel level, const std::string& root) {
  const CheckSet checks(site, plugin_search_path());
  CheckOptions options;
  options.level = level;
  options.root = root.empty() ? site.memory().root() : root;
  options.node = node_name();
  options.user = getuid();
  const std::vector<NodeHealth> history = history_of(site, options.node);
  const std::string boot = read_file(options.root / "proc/sys/kernel/random/boot_id").value_or("");
  options.earlier = since_boot(history, boot.substr(0, boot.find('\n')));
  return checks.run(options);
}

std::string limits_text(const CheckThreshold& threshold) {
  const auto limit = [&](const char* name, const std::optional<double>& value) {
    return value ? fmt::format("{} {} {}", name, threshold.low_is_bad ? "below" : "above",
                               text_with_unit(*value, threshold.unit))
                 : std::string();
  };
  const std::string bad = limit("FAIL", threshold.fail), odd = limit("WARN", threshold.warn);
  return bad.empty() && odd.empty() ? "no threshold" : bad + (bad.empty() || odd.empty() ? "" : ", ") + odd;
}

int list_checks(const Site& site) {
  const CheckSet checks(site, plugin_search_path());
  for (const CheckSet::Entry& entry : checks.entries()) {
    std::printf("%-20s %-6s %s%s\n", entry.spec.id.c_str(), HealthLevel_Name(entry.spec.level).c_str(),
                entry.spec.description.c_str(), entry.skipped ? " (not at this site)" : "");
    for (const CheckThreshold& threshold : entry.spec.thresholds) {
      std::printf("%-27s %s: %s%s%s\n", "", threshold.name.c_str(), limits_text(threshold).c_str(),
                  threshold.meaning.empty() ? "" : "; ", threshold.meaning.c_str());
    }
  }
  return 0;
}

int record_gpus(const std::string& file) {
  const std::string text = to_recorded_text(read_node_gpus("/"));
  std::FILE* out = std::fopen(file.c_str(), "w");
  if (out == nullptr) fail(ErrorKind::resource, "cannot write {}", file);
  std::fputs(text.c_str(), out);
  if (std::fclose(out) != 0) fail(ErrorKind::resource, "cannot write {}", file);
  return 0;
}

// Asked for on the command line, and each told of.
void drain(const HealthReport& report, const Site& site) {
  for (const std::string& command : report.drain_command()) {
    const std::vector<std::string> words{"sh", "-c", command};
    const auto deadline =
        std::min<std::chrono::milliseconds>(parse_duration(site.slurm().command_deadline()), std::chrono::seconds(30));
    const CommandOutput said = run_command(words, deadline);
    const bool done = !said.late && said.code == 0;
    std::fprintf(stderr, "ananke: %s: %s\n", command.c_str(),
                 done ? "done" : describe_failure({"sh"}, said, deadline).c_str());
  }
}

std::optional<Allocation> allocation_of(const Site& site, const HealthArguments& given) {
  if (given.here || !given.root.empty() || site.start() != Site::SRUN) return std::nullopt;
  return read_allocation([](const char* name) { return static_cast<const char*>(std::getenv(name)); });
}

HealthReport ask(const Site& site, const HealthArguments& given, HealthLevel level) {
  const auto begin = Clock::now();
  HealthReport report;
  if (const std::optional<Allocation> allocation = allocation_of(site, given)) {
    const HealthStep step = run_health_step(allocation->nodes, site, site_from_anywhere(given.site), level);
    report = make_report(step.answers, site, level, allocation->job_id, step.asked);
    for (const std::string& note : step.notes) report.add_note(note);
  } else {
    const NodeHealth node = check_here(site, level, given.root);
    report = make_report({{.node = node.node(), .health = node}}, site, level, "", {});
  }
  report.set_seconds(std::chrono::duration<double>(Clock::now() - begin).count());
  if (given.root.empty()) keep_history(&report, site);
  return report;
}

int health(const HealthArguments& given) {
  const HealthLevel level = level_named(given.level);
  if (given.format != "text" && given.format != "json" && given.format != "prometheus") {
    fail(ErrorKind::usage, "--format {} is none of text, json, prometheus", given.format);
  }
  if (!given.root.empty() && given.drain) {
    fail(ErrorKind::usage, "--drain would drain this node for what {} says of another; leave one of the two out",
         given.root);
  }
  if (!given.root.empty() && !std::filesystem::is_directory(given.root)) {
    fail(ErrorKind::usage, "--root {} is no folder; it holds the proc and sys of a node", given.root);
  }
  const Site site = load_site(given.site);
  if (given.list) return list_checks(site);
  HealthReport report = ask(site, given, level);
  if (!given.root.empty()) {  // whose name is not known
    report.clear_exclude();
    report.clear_drain_command();
  }
  const std::string text = given.format == "json"         ? report_json(report)
                           : given.format == "prometheus" ? report_prometheus(report)
                                                          : report_text(report, given.drain);
  std::fputs(text.c_str(), stdout);
  if (given.drain) drain(report, site);
  check_output();
  return static_cast<int>(report.exit_code());
}

}  // namespace

int command_health(const Arguments& arguments) {
  HealthArguments given;
  CommandOptions options(
      "health", "[options]",
      "How this node is, or in an allocation of a site with Slurm how all its nodes are: memory, GPUs,\n"
      "links, file systems, limits. Needs no privileges and changes nothing.");
  options.add()("site", po::value(&given.site)->value_name("SITE")->default_value(given.site),
                "whose thresholds hold, and what its nodes are built of")(
      "level", po::value(&given.level)->value_name("quick|full|burn")->default_value(given.level),
      "quick reads counters; full measures rates of GPUs, which must be idle; burn does so for longer")(
      "format", po::value(&given.format)->value_name("text|json|prometheus")->default_value(given.format),
      "json: one line, proto/ananke/health.proto describes the fields")(
      "here", po::bool_switch(&given.here), "this node alone, also in an allocation: for a prolog")(
      "root", po::value(&given.root)->value_name("DIR"),
      "folder with proc and sys, of another machine or a container's host: no node is then named to be left out")(
      "drain", po::bool_switch(&given.drain), "execute the commands that drain nodes with a defect")(
      "list", po::bool_switch(&given.list), "print the checks and the site's thresholds, and leave")(
      "record-gpus", po::value(&given.record)->value_name("FILE"),
      "write down what NVML says (nvml.textproto of a --root), and leave");
  options.details(
      "exit code: 0 every node passes, perhaps with warnings; 1 a node is bad or unknown; 2 there is no verdict");
  try {
    if (!options.read(arguments)) return 0;
    return given.record.empty() ? health(given) : record_gpus(given.record);
  } catch (const Error& error) {
    std::fprintf(stderr, "ananke: no verdict: %s\n", error.what());
    return no_verdict;
  }
}

int command_health_node(const Arguments& arguments) {
  std::string site, level = "quick";
  CommandOptions options("health-node", "[options]", "Says how this node is to the `ananke health` that started it.");
  options.add()("site", po::value(&site)->value_name("SITE"), "as of `ananke health`")(
      "level", po::value(&level)->value_name("LEVEL"), "likewise");
  if (!options.read(arguments)) return 0;
  const NodeHealth node = check_here(load_site(site), level_named(level), "");
  for (const std::string& line : to_health_lines(node)) std::printf("%s\n", line.c_str());
  return 0;
}

}  // namespace ananke
