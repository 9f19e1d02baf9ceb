#include "launcher/slurm/topology.h"

#include <algorithm>
#include <sstream>

#include "launcher/slurm/command.h"
#include "launcher/slurm/lists.h"
#include "runtime/base/error.h"

namespace ananke {
namespace {

// "Name=Value" words of a line.
std::map<std::string, std::string> fields_of(const std::string& line) {
  std::map<std::string, std::string> fields;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    if (equals != std::string::npos) fields.emplace(word.substr(0, equals), word.substr(equals + 1));
  }
  return fields;
}

std::vector<std::string> list_of(const std::map<std::string, std::string>& fields, const char* name,
                                 const std::string& of) {
  const auto found = fields.find(name);
  if (found == fields.end() || found->second == "(null)") return {};
  return parse_host_list(fmt::format("{} of {} in `scontrol show topology`", name, of), found->second);
}

// Outermost first. A switch that is its own ancestor would go round without end.
std::vector<std::string> path_of(std::string name, const std::map<std::string, std::string>& parents) {
  std::vector<std::string> path{name};
  for (auto found = parents.find(name); found != parents.end(); found = parents.find(path.back())) {
    if (std::ranges::find(path, found->second) != path.end()) break;
    path.push_back(found->second);
  }
  std::ranges::reverse(path);
  return path;
}

bool all_have_groups(const Places& places) {
  return std::ranges::none_of(places.nodes, [](const NodePlace& node) { return node.group.empty(); });
}

}  // namespace

std::map<std::string, SlurmAddress> parse_slurm_topology(std::string_view text) {
  std::map<std::string, std::string> parents, leaves;  // of switches; of nodes
  std::string kind = "switch";
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    const auto fields = fields_of(line);
    const auto block = fields.find("BlockName");
    const auto found = block != fields.end() ? block : fields.find("SwitchName");
    if (found == fields.end()) continue;
    if (block != fields.end()) kind = "block";
    const std::string& name = found->second;
    const std::vector<std::string> below = list_of(fields, "Switches", name);
    for (const std::string& other : below) parents.emplace(other, name);
    if (!below.empty()) continue;  // its nodes are those of the switches below
    for (const std::string& node : list_of(fields, "Nodes", name)) leaves.emplace(node, name);
  }
  std::map<std::string, SlurmAddress> addresses;
  for (const auto& [node, leaf] : leaves) {
    SlurmAddress& address = addresses[node];
    for (const std::string& level : path_of(leaf, parents)) {
      address.address += level + ".";
      address.pattern += kind + ".";
    }
    address.address += node;
    address.pattern += "node";
  }
  return addresses;
}

Places places_of_nodes(const std::vector<std::string>& nodes, const Site& site, std::chrono::milliseconds deadline) {
  Places by_names = find_places(nodes, site, {});
  if (nodes.size() < 2 || all_have_groups(by_names)) return by_names;
  const std::vector<std::string> words{"scontrol", "show", "topology"};
  const CommandOutput said = run_command(words, deadline);
  if (!said.late && said.code == 0) return find_places(nodes, site, parse_slurm_topology(said.output));
  by_names.notices.push_back("UNKNOWN whether Slurm knows its switches: " + describe_failure(words, said, deadline));
  return by_names;
}

}  // namespace ananke
