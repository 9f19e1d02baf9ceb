#include "launcher/slurm/probe.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <future>
#include <map>
#include <sstream>

#include "launcher/slurm/command.h"
#include "runtime/base/error.h"

extern char** environ;

namespace ananke {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text.empty() ? "nothing" : text;
}

bool has_variable_of_psslurm() {
  for (char** variable = environ; *variable != nullptr; ++variable) {
    for (const char* begin : {"PSSLURM_", "PSID_", "PSI_"}) {
      if (std::strncmp(*variable, begin, std::strlen(begin)) == 0) return true;
    }
  }
  return false;
}

// A name of a plugin is one word of letters, digits and '_'.
bool is_plugin_name(const std::string& word) {
  return !word.empty() && std::ranges::all_of(word, [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

// "down*" and "drained" cannot run a step; "draining", "mixed" and "allocated-" can.
bool can_run(std::string state) {
  if (state.ends_with('*')) return false;  // does not answer
  while (!state.empty() && !std::isalpha(static_cast<unsigned char>(state.back()))) state.pop_back();
  static constexpr const char* dead[] = {"down",          "drained", "fail",       "failed",        "error",
                                         "unknown",       "unk",     "future",     "power_down",    "powered_down",
                                         "powering_down", "drain",   "no_respond", "not_responding"};
  return std::ranges::none_of(dead, [&](const char* one) { return state == one; });
}

}  // namespace

SlurmVersion parse_slurm_version(std::string_view text) {
  SlurmVersion version;
  const auto digit = text.find_first_of("0123456789");
  if (digit == std::string_view::npos) return version;
  text = text.substr(digit, text.find_first_of(" \n", digit) - digit);
  version.text = text;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version.major);
  if (error == std::errc() && end != text.data() + text.size() && *end == '.') {
    std::from_chars(end + 1, text.data() + text.size(), version.minor);
  }
  return version;
}

std::vector<std::string> parse_mpi_list(std::string_view text) {
  std::vector<std::string> names;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("srun:")) line.erase(0, 5);
    // "specific pmix plugin versions available: pmix_v4,pmix_v5"
    const auto colon = line.find("available:");
    const bool listed = colon != std::string::npos;
    if (listed) line.erase(0, colon + std::strlen("available:"));
    std::ranges::replace(line, ',', ' ');
    std::istringstream words(line);
    std::vector<std::string> found;
    for (std::string word; words >> word;) found.push_back(word);
    if (!listed && found.size() != 1) continue;
    for (std::string& word : found) {
      if (is_plugin_name(word)) names.push_back(std::move(word));
    }
  }
  return names;
}

SlurmTraits probe_slurm(std::chrono::milliseconds deadline) {
  SlurmTraits traits;
  auto version = std::async(std::launch::async, [&] { return output_of({"srun", "--version"}, deadline); });
  // Where the default plugin of the site cannot be loaded, even this fails unless another is named.
  const std::vector<std::string> words{"srun", "--mpi=list"};
  const CommandOutput listed = run_command(words, deadline, {{"SLURM_MPI_TYPE", "none"}});
  traits.version = parse_slurm_version(version.get());
  traits.mpi = parse_mpi_list(listed.output + "\n" + listed.errors);
  if (listed.late || listed.code != 0) {
    traits.mpi_problem = describe_failure(words, listed, deadline);
    traits.mpi.clear();
  }
  traits.psslurm = has_variable_of_psslurm() || std::ranges::find(traits.mpi, "pspmix") != traits.mpi.end();
  return traits;
}

std::pair<std::string, std::string> choose_mpi(const SlurmTraits& traits, const std::vector<std::string>& preferred) {
  for (const std::string& name : preferred) {
    if (std::ranges::find(traits.mpi, name) != traits.mpi.end()) {
      return {name,
              fmt::format("the first of the site's ({}) that srun offers ({})", joined(preferred), joined(traits.mpi))};
    }
    if (name != "none") continue;
    return {name, traits.mpi_problem.empty() ? fmt::format("of the site's ({}) srun offers no other ({})",
                                                           joined(preferred), joined(traits.mpi))
                                             : traits.mpi_problem};
  }
  fail(
      ErrorKind::config,
      "the site wants one of --mpi={}, but srun offers {}{}; add \"none\" to slurm.mpi of the site, or what is offered",
      joined(preferred), joined(traits.mpi), traits.mpi_problem.empty() ? "" : " (" + traits.mpi_problem + ")");
}

LiveNodes sort_by_state(const std::vector<std::string>& nodes, std::string_view states) {
  std::map<std::string, std::string> dead;
  std::istringstream lines{std::string(states)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string node, state;
    if (words >> node >> state && !can_run(state)) dead[node] = state;
  }
  LiveNodes sorted;
  for (const std::string& node : nodes) {
    const auto found = dead.find(node);
    if (found == dead.end()) {
      sorted.live.push_back(node);
    } else {
      sorted.gone.emplace_back(*found);
    }
  }
  return sorted;
}

LiveNodes find_live_nodes(const std::vector<std::string>& nodes, std::chrono::milliseconds deadline) {
  std::string list;
  for (const std::string& node : nodes) list += (list.empty() ? "" : ",") + node;
  const std::vector<std::string> words{"sinfo", "--noheader", "--Node", "--nodes=" + list, "--format=%N %T"};
  const CommandOutput said = run_command(words, deadline);
  if (!said.late && said.code == 0) return sort_by_state(nodes, said.output);
  LiveNodes all{nodes, {}, describe_failure({"sinfo", "--nodes=..."}, said, deadline)};
  return all;
}

}  // namespace ananke
