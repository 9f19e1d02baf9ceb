#include "launcher/site_check.h"

#include <sys/resource.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <sstream>

#include "ananke/site.pb.h"
#include "launcher/slurm/command.h"
#include "launcher/slurm/probe.h"
#include "runtime/base/error.h"
#include "runtime/base/kernel_text.h"
#include "runtime/base/read_file.h"
#include "runtime/base/units.h"
#include "runtime/memory/node_reader.h"
#include "runtime/topology/host_names.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;
using Verdict = SiteFact::Verdict;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == ' ' || text.back() == '\n')) text.pop_back();
  return text.erase(0, std::min(text.find_first_not_of(' '), text.size()));
}

// "1-00:00:00", "12:00:00", "30:00" (minutes), "infinite": seconds; nothing for another text.
std::optional<long> seconds_of_limit(const std::string& text) {
  if (text == "infinite" || text == "UNLIMITED") return std::numeric_limits<long>::max();
  long days = 0, a = 0, b = 0, c = 0;
  char rest = 0;
  if (std::sscanf(text.c_str(), "%ld-%ld:%ld:%ld%c", &days, &a, &b, &c, &rest) == 4)
    return ((days * 24 + a) * 60 + b) * 60 + c;
  if (std::sscanf(text.c_str(), "%ld:%ld:%ld%c", &a, &b, &c, &rest) == 3) return (a * 60 + b) * 60 + c;
  if (std::sscanf(text.c_str(), "%ld:%ld%c", &b, &c, &rest) == 2) return b * 60 + c;
  return std::nullopt;
}

class SiteCheck {
 public:
  SiteCheck(const Site& site, const SiteCheckOptions& options)
      : site_(site), machine_(site.machine()), options_(options) {}

  std::vector<SiteFact> facts() {
    name();
    processors();
    memory();
    gpus();
    interfaces();
    limits();
    slurm();
    file_systems();
    return std::move(facts_);
  }

 private:
  void add(const std::string& what, const std::string& expected, const std::string& found, bool same) {
    facts_.push_back({same ? Verdict::same : Verdict::differs, what, expected, found});
  }
  void unknown(const std::string& what, const std::string& expected, const std::string& why) {
    facts_.push_back({Verdict::unknown, what, expected, why});
  }
  CommandOutput ask(const std::vector<std::string>& words) const { return run_command(words, options_.deadline); }

  void name() {
    const auto patterns = patterns_of(site_.topology());
    if (patterns.empty()) return;
    std::vector<std::string> texts;
    bool fits = false;
    for (const HostNamePattern& pattern : patterns) {
      texts.push_back(pattern.pattern());
      fits = fits || pattern.place_of(options_.host).has_value();
    }
    add("name of a compute node", some_of(texts, texts.size()), options_.host, fits);
  }

  void processors() {
    if (machine_.has_architecture()) {
      utsname system{};
      uname(&system);
      add("architecture", machine_.architecture(), system.machine, machine_.architecture() == system.machine);
    }
    if (!machine_.has_cpus()) return;
    const std::string expected = std::to_string(machine_.cpus());
    const fs::path file = options_.root / "sys/devices/system/cpu/online";
    const auto list = parse_number_list(trimmed(read_file(file).value_or("?")));
    if (!list) return unknown("CPUs", expected, file.string() + " cannot be read");
    std::uint64_t cpus = 0;
    for (const NumberRange& range : *list) cpus += range.last - range.first + 1;
    add("CPUs", expected, std::to_string(cpus), cpus == machine_.cpus());
  }

  void memory() {
    if (!machine_.has_cpu_numa_nodes() && !machine_.has_numa_nodes() && !machine_.has_numa_memory()) return;
    const NodeMemory node = read_node_memory(options_.root, options_.host);
    std::uint32_t with_cpus = 0;
    std::uint64_t least = ~std::uint64_t{0};
    std::string trouble = node.undivided() ? "the kernel tells of no NUMA nodes" : "";
    for (const NumaMemory& numa : node.numa()) {
      if (numa.cpus().empty()) continue;
      ++with_cpus;
      if (numa.read()) least = std::min<std::uint64_t>(least, numa.total());
    }
    if (with_cpus == 0 && trouble.empty()) trouble = "no NUMA node with CPUs can be read";
    const auto number = [&](const char* what, bool has, std::uint32_t expected, std::uint32_t found) {
      if (!has) return;
      if (!trouble.empty()) return unknown(what, std::to_string(expected), trouble);
      add(what, std::to_string(expected), std::to_string(found), expected == found);
    };
    number("NUMA nodes with CPUs", machine_.has_cpu_numa_nodes(), machine_.cpu_numa_nodes(), with_cpus);
    number("NUMA nodes", machine_.has_numa_nodes(), machine_.numa_nodes(),
           static_cast<std::uint32_t>(node.numa_size()));
    if (!machine_.has_numa_memory()) return;
    const std::string what = "memory of each of them", expected = "at least " + machine_.numa_memory();
    if (!trouble.empty() || least == ~std::uint64_t{0}) {
      return unknown(what, expected, trouble.empty() ? "it cannot be read" : trouble);
    }
    add(what, expected, "at least " + format_bytes(least), least >= parse_bytes(machine_.numa_memory()));
  }

  void gpus() {
    const std::uint32_t expected = site_.hardware().gpus();
    if (expected == 0 && !machine_.has_gpu_name()) return;
    const std::vector<std::string> words{"nvidia-smi", "--query-gpu=name", "--format=csv,noheader"};
    const CommandOutput said = ask(words);
    if (said.late || said.code != 0) {
      return unknown("GPUs", std::to_string(expected), describe_failure(words, said, options_.deadline));
    }
    const std::vector<std::string> names = lines_of(trimmed(said.output));
    if (expected > 0) add("GPUs", std::to_string(expected), std::to_string(names.size()), names.size() == expected);
    if (!machine_.has_gpu_name()) return;
    const auto other =
        std::ranges::find_if(names, [&](const std::string& one) { return !one.starts_with(machine_.gpu_name()); });
    const bool same = !names.empty() && other == names.end();
    add("GPUs' name", machine_.gpu_name(), same ? names.front() : names.empty() ? "no GPU" : *other, same);
  }

  void interfaces() {
    std::vector<std::string> wanted(machine_.network_interface().begin(), machine_.network_interface().end());
    const std::string& own = site_.network_interface();
    const bool is_name = !own.empty() && std::isalpha(static_cast<unsigned char>(own.front()));
    if (is_name && std::ranges::find(wanted, own) == wanted.end()) wanted.push_back(own);
    for (const std::string& one : wanted) entry("network interface", options_.root / "sys/class/net", one);
    for (const std::string& one : machine_.infiniband())
      entry("InfiniBand", options_.root / "sys/class/infiniband", one);
  }

  void entry(const std::string& what, const fs::path& folder, const std::string& name) {
    std::vector<std::string> there;
    std::error_code error;
    for (fs::directory_iterator one(folder, error), end; !error && one != end; one.increment(error)) {
      there.push_back(one->path().filename().string());
    }
    std::ranges::sort(there, natural_less);
    const bool same = std::ranges::find(there, name) != there.end();
    add(what, name, same ? name : there.empty() ? "none" : some_of(there, 8), same);
  }

  void limits() {
    const auto least = [&](const std::string& what, const std::string& expected, int resource, rlim_t wanted) {
      rlimit limit{};
      if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) {
        return unknown(what, expected, std::strerror(errno));
      }
      const std::string found = limit.rlim_cur == RLIM_INFINITY ? "unlimited"
                                : resource == RLIMIT_MEMLOCK    ? format_bytes(limit.rlim_cur)
                                                                : std::to_string(limit.rlim_cur);
      add(what, expected, found, limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= wanted);
    };
    if (machine_.has_locked_memory()) {
      const bool all = machine_.locked_memory() == "unlimited";
      least("locked memory", machine_.locked_memory(), RLIMIT_MEMLOCK,
            all ? RLIM_INFINITY : parse_bytes(machine_.locked_memory()));
    }
    if (machine_.has_open_files()) {
      least("open files", fmt::format("at least {}", machine_.open_files()), RLIMIT_NOFILE, machine_.open_files());
    }
  }

  void slurm() {
    if (site_.start() != Site::SRUN) return;
    if (machine_.has_oldest_slurm()) version();
    mpi();
    partitions();
  }

  void version() {
    const std::vector<std::string> words{"sinfo", "--version"};
    const std::string expected = machine_.oldest_slurm() + " or newer";
    const CommandOutput said = ask(words);
    const SlurmVersion found = parse_slurm_version(said.code == 0 ? said.output : ""),
                       oldest = parse_slurm_version(machine_.oldest_slurm());
    if (!found.known()) return unknown("Slurm", expected, describe_failure(words, said, options_.deadline));
    add("Slurm", expected, found.text, found.at_least(oldest.major, oldest.minor));
  }

  void mpi() {
    std::vector<std::string> wanted(site_.slurm().mpi().begin(), site_.slurm().mpi().end());
    if (wanted.empty()) wanted = {"pmix", "none"};
    const std::string what = "srun --mpi", expected = "one of " + some_of(wanted, wanted.size());
    try {
      const SlurmTraits traits = probe_slurm(options_.deadline);
      if (traits.mpi.empty())
        return unknown(what, expected, traits.mpi_problem.empty() ? "srun lists none" : traits.mpi_problem);
      const std::string offered = some_of(traits.mpi, traits.mpi.size());
      const bool same = std::ranges::any_of(wanted, [&](const std::string& one) {
        return one == "none" || std::ranges::find(traits.mpi, one) != traits.mpi.end();
      });
      add(what, expected, offered, same);
    } catch (const Error& error) {
      unknown(what, expected, error.what());
    }
  }

  void partitions() {
    if (machine_.partition().empty()) return;
    const std::vector<std::string> words{"sinfo", "--noheader", "--format=%R|%l"};
    const CommandOutput said = ask(words);
    for (const SitePartition& wanted : machine_.partition()) {
      const std::string what = "partition " + wanted.name();
      const std::string expected = wanted.has_time_limit() ? wanted.time_limit() + " at least" : "there";
      if (said.late || said.code != 0) {
        unknown(what, expected, describe_failure(words, said, options_.deadline));
      } else {
        partition(wanted, what, expected, said.output);
      }
    }
  }

  void partition(const SitePartition& wanted, const std::string& what, const std::string& expected,
                 const std::string& said) {
    std::vector<std::string> names;
    for (const std::string& line : lines_of(said)) {
      const std::size_t bar = line.find('|');
      if (bar == std::string::npos) continue;
      names.push_back(line.substr(0, bar));
      if (names.back() != wanted.name()) continue;
      const std::string limit = trimmed(line.substr(bar + 1));
      if (!wanted.has_time_limit()) return add(what, expected, "there", true);
      const auto seconds = seconds_of_limit(limit);
      if (!seconds) return unknown(what, expected, fmt::format("Slurm says its limit is '{}'", limit));
      return add(what, expected, limit, *seconds >= parse_duration(wanted.time_limit()).count() / 1000);
    }
    add(what, expected, names.empty() ? "no partition" : "there are " + some_of(names, 8), false);
  }

  void file_systems() {
    for (const SiteFileSystem& wanted : machine_.file_system()) {
      const std::string what = "file system " + wanted.path();
      const std::string expected = wanted.has_type() ? wanted.type() : "there";
      std::string path = wanted.path();
      if (path.starts_with('$')) {
        const auto value = options_.environment.find(path.substr(1));
        if (value == options_.environment.end() || value->second.empty()) {
          unknown(what, expected, path + " is not set here");
          continue;
        }
        path = value->second;
      }
      // A file system that does not answer holds whoever asks, so another process does.
      const std::vector<std::string> words{"stat", "--file-system", "--format=%T", path};
      const CommandOutput said = ask(words);
      const std::string type = trimmed(said.output);
      if (said.late || said.code != 0) {
        unknown(what, expected, describe_failure(words, said, options_.deadline));
      } else {
        add(what, expected, fmt::format("{} ({})", type, path), !wanted.has_type() || type == wanted.type());
      }
    }
  }

  const Site& site_;
  const SiteMachine& machine_;
  const SiteCheckOptions& options_;
  std::vector<SiteFact> facts_;
};

}  // namespace

std::vector<SiteFact> check_site(const Site& site, const SiteCheckOptions& options) {
  return SiteCheck(site, options).facts();
}

}  // namespace ananke
