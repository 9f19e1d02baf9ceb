#include "runtime/bootstrap/identity.h"

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "runtime/base/error.h"

namespace ananke {
namespace {

// Larger than any job, small enough to be multiplied.
constexpr int largest = 1 << 24;

std::optional<int> parse_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > largest) return std::nullopt;
  return value;
}

class Variables {
 public:
  explicit Variables(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  std::string text(const char* name) const {
    const char* value = lookup_(name);
    return value == nullptr ? "" : value;
  }
  std::optional<int> number(const char* name) const {
    const std::string value = text(name);
    if (value.empty()) return std::nullopt;
    const auto parsed = parse_number(value);
    if (!parsed) {
      fail(ErrorKind::config, "the environment says {}='{}', which is no number from 0 to {}; unset or correct it",
           name, value, largest);
    }
    return parsed;
  }
  int required(const char* name) const {
    const auto value = number(name);
    if (!value) {
      fail(ErrorKind::config, "SLURM_PROCID is set but {} is not; start the workers with srun, or with `ananke run`",
           name);
    }
    return *value;
  }

 private:
  const EnvironmentLookup& lookup_;
};

// "4(x2),3": tasks of each node in turn. Empty where the text is something else.
std::vector<int> parse_tasks_per_node(std::string_view text) {
  std::vector<int> tasks;
  while (!text.empty()) {
    std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    int times = 1;
    if (const auto open = item.find("(x"); open != std::string_view::npos && item.back() == ')') {
      times = parse_number(item.substr(open + 2, item.size() - open - 3)).value_or(0);
      item = item.substr(0, open);
    }
    const auto count = parse_number(item);
    if (!count || times < 1 || tasks.size() + static_cast<std::size_t>(times) > static_cast<std::size_t>(largest)) {
      return {};
    }
    tasks.insert(tasks.end(), static_cast<std::size_t>(times), *count);
  }
  return tasks;
}

}  // namespace

void detail::check_identity(const Identity& identity) {
  const auto check = [&](bool good, const char* what, int value, const char* of, int limit) {
    if (good) return;
    fail(ErrorKind::config, "{} says that this worker has {} {} of {} {}, which cannot be; check how it was started",
         identity.source, what, value, of, limit);
  };
  check(identity.rank >= 0 && identity.rank < identity.size, "rank", identity.rank, "size", identity.size);
  check(identity.local_rank >= 0 && identity.local_rank < identity.local_size, "local rank", identity.local_rank,
        "local size", identity.local_size);
  check(identity.local_size <= identity.size, "local size", identity.local_size, "size", identity.size);
  check(identity.node_index >= 0 && identity.node_index < identity.size, "node", identity.node_index, "at most",
        identity.size);
}

Identity identify_by_slurm(const EnvironmentLookup& lookup) {
  const Variables variables(lookup);
  Identity identity;
  identity.source = "Slurm's environment";
  identity.rank = variables.required("SLURM_PROCID");
  identity.size = variables.number("SLURM_STEP_NUM_TASKS").value_or(0);
  if (identity.size == 0) identity.size = variables.required("SLURM_NTASKS");
  identity.local_rank = variables.required("SLURM_LOCALID");
  identity.node_index = variables.required("SLURM_NODEID");
  const char* layout_name = "SLURM_STEP_TASKS_PER_NODE";
  std::string layout = variables.text(layout_name);
  if (layout.empty()) layout = variables.text(layout_name = "SLURM_TASKS_PER_NODE");
  const std::vector<int> tasks = parse_tasks_per_node(layout);
  if (static_cast<std::size_t>(identity.node_index) >= tasks.size()) {
    fail(ErrorKind::config,
         "the environment says {}='{}', which has no entry for SLURM_NODEID={}; expected tasks of each "
         "node, such as '4(x2),3'",
         layout_name, layout, identity.node_index);
  }
  identity.local_size = tasks[static_cast<std::size_t>(identity.node_index)];
  identity.host = variables.text("SLURMD_NODENAME");
  if (identity.host.empty()) identity.host = fmt::format("node {}", identity.node_index);
  identity.job_id = fmt::format("slurm.{}.{}.{}", variables.text("SLURM_JOB_ID"), variables.text("SLURM_STEP_ID"),
                                variables.number("SLURM_RESTART_COUNT").value_or(0));
  detail::check_identity(identity);
  return identity;
}

Identity identify(std::chrono::milliseconds deadline) {
  const EnvironmentLookup lookup = [](const char* name) { return static_cast<const char*>(std::getenv(name)); };
  const Variables variables(lookup);
  if (!variables.text("PMIX_NAMESPACE").empty() && !variables.text("PMIX_RANK").empty()) {
    const bool of_slurm = variables.text("PMIX_NAMESPACE").starts_with("slurm.");
    if (!of_slurm || variables.text("SLURM_PROCID").empty()) return detail::identify_by_pmix(deadline);
    try {
      return detail::identify_by_pmix(deadline / 2);
    } catch (const Error& error) {
      Identity identity = identify_by_slurm(lookup);
      identity.source += fmt::format(", since PMIx failed: {}", error.what());
      return identity;
    }
  }
  if (!variables.text("SLURM_PROCID").empty()) return identify_by_slurm(lookup);
  fail(ErrorKind::usage,
       "nothing says which worker this is: neither PMIX_RANK nor SLURM_PROCID is set; workers are "
       "started by `ananke run` or by srun");
}

}  // namespace ananke
