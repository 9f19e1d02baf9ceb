#include "runtime/binding/rank_binding.h"

#include <fmt/ranges.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <sstream>

#include "ananke/faults.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/read_file.h"
#include "runtime/comm/rendezvous.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

std::string value_of(const std::string& table, const std::string& name) {
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name + ":")) continue;
    const auto begin = line.find_first_not_of(" \t", name.size() + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return {};
}

std::vector<NumberRange> ranges_of(const std::string& text) {
  return parse_number_list(text).value_or(std::vector<NumberRange>{});
}

std::uint64_t count_of(const std::vector<NumberRange>& list) {
  std::uint64_t count = 0;
  for (const NumberRange& range : list) count += range.last - range.first + 1;
  return count;
}

std::string who(const RankBinding& rank) { return fmt::format("rank {} on {}", rank.rank, rank.node); }

// Sentences of one rank.
void judge_rank(const RankBinding& rank, const Binding& rules, BindingVerdict& verdict) {
  const auto add = [&](bool refused, std::string sentence) {
    (refused ? verdict.refusals : verdict.warnings).push_back(std::move(sentence));
  };
  const std::uint64_t cpus = count_of(ranges_of(rank.cpus));
  if (rank.cpus.empty()) {
    add(rules.least_cpus() > 0,
        fmt::format("{}: UNKNOWN on which CPUs it runs: /proc/self/status does not say", who(rank)));
  } else if (cpus < rules.least_cpus()) {
    add(true, fmt::format("{} may run on {} CPUs ({}), and binding.least_cpus of the site is {}; give its task more: "
                          "srun --cpus-per-task, slurm.srun_flag",
                          who(rank), cpus, rank.cpus, rules.least_cpus()));
  }
  const bool near = rank.device_numa < 0 || rank.memory.empty() ||
                    contains_number(ranges_of(rank.memory), static_cast<std::uint64_t>(rank.device_numa));
  if (!near) {
    add(rules.near_memory(), fmt::format("{} may take memory of NUMA nodes {} only, and its device {} is on {}: copies "
                                         "between them are slow; change the memory binding (srun --mem-bind, numactl)",
                                         who(rank), rank.memory, rank.device, rank.device_numa));
  }
  if (!rank.adapters.empty() && rank.down.size() == rank.adapters.size()) {
    add(rules.near_adapter(), fmt::format("{}: the InfiniBand adapter nearest to its device {} is down: {}; the node's "
                                          "traffic goes round about. See `ibstat`, and have the node looked at",
                                          who(rank), rank.device, fmt::join(rank.down, ", ")));
  }
}

// Sentences of two ranks of one node.
void judge_pair(const RankBinding& a, const RankBinding& b, const Binding& rules, BindingVerdict& verdict) {
  if (!a.device.empty() && a.device == b.device) {
    verdict.refusals.push_back(
        fmt::format("ranks {} and {} on {} both have {}; every rank needs a GPU of its own: give each task one (srun "
                    "--gpus-per-task=1), or let all see all of the node's",
                    a.rank, b.rank, a.node, a.device));
  }
  if (rules.own_cpus() && have_common_number(ranges_of(a.cpus), ranges_of(b.cpus))) {
    // Ranks that have tried themselves had too few to share out.
    const char* advice = rules.cpus() == Binding::NEAREST
                             ? "beside their devices are fewer CPUs than ranks, or no device is beside any in "
                               "particular: give the tasks more CPUs (srun --cpus-per-task), or a node fewer ranks"
                             : "bind the tasks (srun --cpu-bind=cores), or let the ranks do it (binding.cpus: NEAREST)";
    verdict.refusals.push_back(
        fmt::format("ranks {} and {} on {} share CPUs ({} and {}), which binding.own_cpus of the site forbids; {}",
                    a.rank, b.rank, a.node, a.cpus, b.cpus, advice));
  }
}

std::string list_of(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, " ")); }

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(std::move(word));
  return words;
}

// What this rank's share is of: those of its node whose device is on the same NUMA node.
void bind_nearest(const fs::path& root, const RankBinding& before, const std::vector<RankBinding>& all) {
  if (before.device_numa < 0) {
    log_info(
        "binding.cpus is NEAREST, but the device of this rank is on no NUMA node in particular: CPUs {} as it was "
        "started",
        before.cpus);
    return;
  }
  const std::vector<NumaCpus> nodes = read_numa_cpus(root);
  const auto node = std::ranges::find(nodes, before.device_numa, &NumaCpus::id);
  int index = 0, ranks = 0;
  for (const RankBinding& other : all) {
    if (other.node != before.node || other.device_numa != before.device_numa) continue;
    index += other.rank < before.rank ? 1 : 0;
    ++ranks;
  }
  const std::vector<std::uint64_t> share = node == nodes.end()
                                               ? std::vector<std::uint64_t>()
                                               : share_of_cpus(ranges_of(before.cpus), node->cpus, index, ranks);
  if (share.empty()) {
    fail(ErrorKind::config,
         "binding.cpus of the site is NEAREST, but {} may run on CPUs {} only, none of which is on NUMA node {} of its "
         "device {}; let srun give it all CPUs of the node (slurm.srun_flag: \"--cpu-bind=none\"), or leave it "
         "AS_STARTED",
         who(before), before.cpus, before.device_numa, before.device);
  }
  bind_to_cpus(share);
}

std::vector<RankBinding> exchange(Rendezvous& rendezvous, const std::string& key, const RankBinding& mine) {
  std::vector<RankBinding> all;
  for (const std::string& text : rendezvous.exchange(key, {}, pack(mine))) all.push_back(unpack_binding(text));
  return all;
}

}  // namespace

RankBinding read_binding(const fs::path& root, int rank, const std::string& node, const BoundDevice& device) {
  const std::string status = read_file(root / "proc/self/status").value_or("");
  RankBinding binding{.rank = rank,
                      .node = node,
                      .cpus = value_of(status, "Cpus_allowed_list"),
                      .memory = value_of(status, "Mems_allowed_list"),
                      .device = device.uuid,
                      .device_numa = device.numa,
                      .adapters = {},
                      .down = {}};
  if (device.uuid.empty()) return binding;
  const std::vector<Gpu> gpus = read_gpus(root);
  const auto gpu = std::ranges::find(gpus, device.uuid, &Gpu::uuid);
  PciPlace place{.path = {}, .numa = device.numa};
  if (gpu != gpus.end()) {
    place.path = gpu->place.path;
    if (place.numa < 0) place.numa = gpu->place.numa;
  }
  binding.device_numa = place.numa;
  for (const Adapter& adapter : nearest_adapters(read_adapters(root), place)) {
    binding.adapters.push_back(adapter.name);
    if (!adapter.active) binding.down.push_back(adapter.name);
  }
  return binding;
}

std::vector<std::uint64_t> share_of_cpus(const std::vector<NumberRange>& allowed, const std::vector<NumberRange>& numa,
                                         int index, int ranks) {
  std::vector<std::uint64_t> all;
  for (const NumberRange& range : numa) {
    for (std::uint64_t cpu = range.first; cpu <= range.last; ++cpu) {
      if (contains_number(allowed, cpu)) all.push_back(cpu);
    }
  }
  const auto parts = static_cast<std::size_t>(std::max(ranks, 1)), part = static_cast<std::size_t>(index);
  if (all.size() < parts) return all;
  const auto at = [&](std::size_t which) {
    return all.begin() + static_cast<std::ptrdiff_t>(all.size() * which / parts);
  };
  return {at(part), at(part + 1)};
}

void bind_to_cpus(const std::vector<std::uint64_t>& cpus) {
  const std::size_t most = cpus.empty() ? 1 : *std::ranges::max_element(cpus) + 1;
  const std::size_t bytes = CPU_ALLOC_SIZE(most);
  std::vector<unsigned long> memory(bytes / sizeof(unsigned long) + 1, 0);
  auto* const set = reinterpret_cast<cpu_set_t*>(memory.data());
  for (const std::uint64_t cpu : cpus) CPU_SET_S(cpu, bytes, set);
  std::error_code none;
  for (fs::directory_iterator thread("/proc/self/task", none), end; !none && thread != end; thread.increment(none)) {
    const int id = std::atoi(thread->path().filename().c_str());
    if (sched_setaffinity(id, bytes, set) == 0 || errno == ESRCH) continue;
    fail(ErrorKind::resource, "cannot bind thread {} to CPUs {}: {}; does the task's control group allow them?", id,
         fmt::join(cpus, ","), std::strerror(errno));
  }
}

BindingVerdict judge_binding(const std::vector<RankBinding>& ranks, const Binding& rules) {
  BindingVerdict verdict;
  std::map<std::string, std::vector<const RankBinding*>> nodes;
  for (const RankBinding& rank : ranks) {
    judge_rank(rank, rules, verdict);
    for (const RankBinding* other : nodes[rank.node]) judge_pair(*other, rank, rules, verdict);
    nodes[rank.node].push_back(&rank);
  }
  return verdict;
}

std::string to_string(const RankBinding& rank) {
  std::string text =
      fmt::format("{}: CPUs {}, memory of NUMA nodes {}", who(rank), rank.cpus.empty() ? "UNKNOWN" : rank.cpus,
                  rank.memory.empty() ? "UNKNOWN" : rank.memory);
  if (rank.device.empty()) return text;
  text += fmt::format(", device {} on NUMA node {}", rank.device,
                      rank.device_numa < 0 ? "UNKNOWN" : std::to_string(rank.device_numa));
  if (!rank.adapters.empty()) text += fmt::format(", near {}", fmt::join(rank.adapters, " "));
  if (!rank.down.empty()) text += fmt::format(" (down: {})", fmt::join(rank.down, " "));
  return text;
}

std::string pack(const RankBinding& rank) {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n", rank.rank, rank.node, rank.cpus, rank.memory, rank.device,
                     rank.device_numa, list_of(rank.adapters), list_of(rank.down));
}

RankBinding unpack_binding(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(std::move(line));
  if (lines.size() != 8) fail(ErrorKind::internal, "'{}' is no record of a rank's binding", text);
  return {std::atoi(lines[0].c_str()), lines[1],           lines[2],          lines[3], lines[4],
          std::atoi(lines[5].c_str()), words_of(lines[6]), words_of(lines[7])};
}

std::vector<RankBinding> settle_binding(const Binding& rules, const fs::path& root, const std::string& node,
                                        const BoundDevice& device, Rendezvous& rendezvous) {
  RankBinding mine = read_binding(root, rendezvous.rank(), node, device);
  std::vector<RankBinding> all;
  if (rules.cpus() == Binding::NEAREST) {
    all = exchange(rendezvous, "binding before", mine);
    bind_nearest(root, mine, all);
    mine = read_binding(root, rendezvous.rank(), node, device);
  }
  all = exchange(rendezvous, "binding", mine);
  log_info("{}", to_string(mine));
  const BindingVerdict verdict = judge_binding(all, rules);
  for (const std::string& sentence : verdict.warnings) {
    if (rendezvous.rank() == 0) log_warning("{}", sentence);
  }
  if (!verdict.refusals.empty()) {
    fail(ErrorKind::config, "{} of the job's ranks are bound as they must not be:\n  {}", verdict.refusals.size(),
         fmt::join(verdict.refusals, "\n  "));
  }
  return all;
}

}  // namespace ananke
