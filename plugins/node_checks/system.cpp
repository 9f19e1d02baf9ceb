// CPUs, limits, the clock's source, the kernel, and what this user has left on the node.
#include <sys/stat.h>

#include <algorithm>
#include <limits>
#include <set>

#include "ananke/site.pb.h"
#include "plugins/node_checks/node_checks.h"
#include "runtime/base/kernel_text.h"
#include "runtime/base/read_file.h"
#include "runtime/base/units.h"

namespace ananke::node_checks {
namespace {

namespace fs = std::filesystem;

std::uint64_t count_of(const std::vector<NumberRange>& list) {
  std::uint64_t count = 0;
  for (const NumberRange& range : list) count += range.last - range.first + 1;
  return count;
}

CheckResult check_cpus(const CheckContext& context) {
  Findings found(context);
  const fs::path folder = context.root / "sys/devices/system/cpu";
  const auto online = line_of(folder / "online"), present = line_of(folder / "present");
  const auto on = online ? parse_number_list(*online) : std::nullopt;
  const auto all = present ? parse_number_list(*present) : std::nullopt;
  if (!on || !all || on->empty()) {
    found.unknown("which CPUs are online cannot be read (/sys/devices/system/cpu)");
    return found.result("");
  }
  found.number("online", "", static_cast<double>(count_of(*on)), "", HealthValue::EQUAL);
  if (count_of(*on) < count_of(*all)) {
    found.fail(DEFECT,
               fmt::format("{} of {} CPUs are online ({} of {})", count_of(*on), count_of(*all), *online, *present));
  }
  return found.result(fmt::format("{} CPUs", count_of(*on)));
}

// The soft limit of a line of proc/self/limits; infinite where it says so.
std::optional<double> limit_in(const std::string& text, const std::string& title) {
  const auto at = text.find(title);
  if (at == std::string::npos) return std::nullopt;
  const auto begin = text.find_first_not_of(' ', at + title.size());
  const std::string word = text.substr(begin, text.find_first_of(" \n", begin) - begin);
  if (word == "unlimited") return std::numeric_limits<double>::infinity();
  const std::optional<std::uint64_t> number = parse_number(word);
  return number ? std::optional<double>(static_cast<double>(*number)) : std::nullopt;
}

CheckResult check_limits(const CheckContext& context) {
  Findings found(context);
  const std::string text = read_file(context.root / "proc/self/limits").value_or("");
  struct Limit {
    const char *threshold, *title, *command;
  };
  for (const Limit& limit :
       {Limit{"memlock", "Max locked memory", "ulimit -l unlimited"}, Limit{"nofile", "Max open files", "ulimit -n"}}) {
    const std::optional<double> value = limit_in(text, limit.title);
    if (!value) {
      found.unknown(fmt::format("/proc/self/limits does not tell '{}'", limit.title));
      continue;
    }
    const bool bytes = limit.threshold == std::string("memlock");
    found.judge(
        limit.threshold, *value, fmt::format("{} is {}", limit.title, text_with_unit(*value, bytes ? "bytes" : "")),
        fmt::format("raise it ({}), and see that Slurm takes it along (PropagateResourceLimits)", limit.command),
        SETTING);
  }
  return found.result("memory to be locked and open files suffice");
}

std::string word_after(const std::string& text, const std::string& title) {
  const auto at = ("\n" + text).find("\n" + title);
  if (at == std::string::npos) return "";
  const auto begin = text.find_first_not_of(" \t", at + title.size());
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_first_of(" \t\n", begin) - begin);
}

struct Process {
  std::string number, status;
  std::string parent() const { return word_after(status, "PPid:"); }
  std::string user() const { return word_after(status, "Uid:"); }
};

// "job_77" of a process in a control group of Slurm's; empty: it is in none.
std::string job_of(const fs::path& folder) {
  const std::string text = read_file(folder / "cgroup").value_or("");
  const auto at = text.find("/job_");
  return at == std::string::npos ? "" : text.substr(at + 1, text.find_first_of("/\n", at + 1) - at - 1);
}

// In a process's environment, where this user may look at it.
std::string variable_of(const fs::path& folder, const std::string& name) {
  const std::string text = '\0' + read_file(folder / "environ").value_or("");
  const auto at = text.find('\0' + name + "=");
  if (at == std::string::npos) return "";
  const auto begin = at + name.size() + 2;
  return text.substr(begin, text.find('\0', begin) - begin);
}

CheckResult check_leftover(const CheckContext& context) {
  Findings found(context);
  if (context.site.health().shared_nodes() || context.site.start() == Site::LOCAL) {
    return found.skipped("nodes of this site are shared: other processes of this user may be meant to be there");
  }
  const fs::path proc = context.root / "proc";
  if (!read_file(proc / "self/status")) found.unknown("/proc/self/status cannot be read");
  std::vector<Process> processes;
  for (const std::string& name : names_in(proc)) {
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (const auto status = read_file(proc / name / "status")) processes.push_back({name, *status});
  }
  if (processes.empty()) found.unknown("/proc shows no process");
  const std::string self = std::to_string(context.process), job = job_of(proc / "self");
  const std::string slurm_job = variable_of(proc / "self", "SLURM_JOB_ID");
  const auto find = [&](const std::string& number) { return std::ranges::find(processes, number, &Process::number); };
  std::set<std::string> ancestors;
  for (auto at = find(self); at != processes.end() && ancestors.insert(at->number).second;) at = find(at->parent());
  std::vector<std::string> others;
  for (const Process& process : processes) {
    if (process.user() != std::to_string(context.user) || ancestors.contains(process.number)) continue;
    bool own = false;
    std::set<std::string> seen;
    for (auto at = find(process.number); at != processes.end() && seen.insert(at->number).second && !own;) {
      own = at->number == self;  // a descendant
      at = find(at->parent());
    }
    const fs::path folder = proc / process.number;
    if (own || (!job.empty() && job_of(folder) == job)) continue;
    if (!slurm_job.empty() && variable_of(folder, "SLURM_JOB_ID") == slurm_job) continue;
    others.push_back(describe_process(context.root, static_cast<unsigned>(std::stoul(process.number))));
  }
  found.number("processes", "", static_cast<double>(others.size()), "");
  if (!others.empty()) {
    const std::size_t count = others.size();
    others.resize(std::min<std::size_t>(count, 4));
    found.warn(fmt::format("{} other process{} of this user: {}{}", count, count == 1 ? "" : "es", joined(others),
                           count > 4 ? ", ..." : ""),
               "of an earlier job? end them");
  }
  return found.result("no other process of this user");
}

CheckResult check_shared_files(const CheckContext& context) {
  Findings found(context);
  if (context.site.health().shared_nodes() || context.site.start() == Site::LOCAL) {
    return found.skipped("nodes of this site are shared: other files of this user may be meant to be there");
  }
  const fs::path folder = context.root / "dev/shm";
  std::error_code error;
  std::uint64_t bytes = 0;
  std::vector<std::string> names;
  fs::recursive_directory_iterator entry(folder, fs::directory_options::skip_permission_denied, error), end;
  if (error) found.unknown(fmt::format("/dev/shm: {}", error.message()));
  for (; !error && entry != end; entry.increment(error)) {
    struct stat facts {};
    if (lstat(entry->path().c_str(), &facts) != 0 || facts.st_uid != context.user || !S_ISREG(facts.st_mode)) continue;
    bytes += static_cast<std::uint64_t>(facts.st_blocks) * 512;
    names.push_back(entry->path().filename());
  }
  found.number("files", "", static_cast<double>(names.size()), "");
  found.number("bytes", "", static_cast<double>(bytes), "bytes");
  if (!names.empty()) {
    const std::size_t count = names.size();
    std::ranges::sort(names);
    names.resize(std::min<std::size_t>(count, 3));
    found.warn(fmt::format("{} file{} of this user in /dev/shm, {}: {}{}", count, count == 1 ? "" : "s",
                           format_bytes(bytes), joined(names), count > 3 ? ", ..." : ""),
               "of an earlier job? remove them");
  }
  return found.result("no file of this user in /dev/shm");
}

CheckResult check_clock_source(const CheckContext& context) {
  Findings found(context);
  const auto source = line_of(context.root / "sys/devices/system/clocksource/clocksource0/current_clocksource");
  if (!source || source->empty()) {
    found.unknown("/sys/devices/system/clocksource cannot be read");
    return found.result("");
  }
  found.text("source", "", *source, HealthValue::EQUAL);
  for (const char* slow : {"hpet", "acpi_pm", "jiffies"}) {
    if (*source == slow) found.warn(fmt::format("the clock is {}, which is slow to read", slow));
  }
  return found.result("clock " + *source);
}

CheckResult check_kernel(const CheckContext& context) {
  Findings found(context);
  const auto release = line_of(context.root / "proc/sys/kernel/osrelease");
  if (!release || release->empty()) {
    found.unknown("/proc/sys/kernel/osrelease cannot be read");
  } else {
    found.text("release", "", *release, HealthValue::EQUAL);
  }
  return found.result("kernel " + release.value_or(""));
}

}  // namespace

std::vector<NodeCheck> system_checks(const Site& site) {
  // InfiniBand locks what it sends from.
  const std::optional<double> memlock = site.health().ports() > 0 ? std::optional<double>(64e9) : std::nullopt;
  return {
      {{.id = "cpu.online",
        .description = "all CPUs are online",
        .sensors = {"sys/devices/system/cpu/online", "sys/devices/system/cpu/present"}},
       check_cpus},
      {{.id = "limits",
        .description = "limits of this user's processes",
        .thresholds = {{"memlock", "bytes", true, memlock, {}, "memory that may be locked"},
                       {"nofile", "", true, {}, 4096.0, "open files"}},
        .sensors = {"proc/self/limits"}},
       check_limits},
      {{.id = "proc.leftover",
        .description = "other processes of this user on the node",
        .sensors = {"proc/self/status"}},
       check_leftover},
      {{.id = "shm.leftover", .description = "files of this user in /dev/shm", .sensors = {"dev/shm"}},
       check_shared_files},
      {{.id = "clock.source",
        .description = "the kernel's source of time",
        .sensors = {"sys/devices/system/clocksource/clocksource0/current_clocksource"}},
       check_clock_source},
      {{.id = "os.kernel", .description = "the kernel's release", .sensors = {"proc/sys/kernel/osrelease"}},
       check_kernel},
  };
}

}  // namespace ananke::node_checks
