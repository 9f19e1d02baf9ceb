// Where the nodes of a job are: in which group of racks, in which rack. Pure functions of names, Slurm's variables and
// the site's profile; nobody is asked.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ananke {

class Site;

struct NodePlace {
  std::string node;   // its name
  std::string group;  // behind one set of switches; links between groups are scarce. Empty: not known
  std::string rack;   // or leaf switch, inside its group. Empty: not known
  int slot = -1;      // place in the rack; -1: not known
  bool operator==(const NodePlace&) const = default;
};

// "node9" before "node10": runs of digits by their value, the rest by its letters. A strict order of different texts.
bool natural_less(std::string_view a, std::string_view b);

// SLURM_TOPOLOGY_ADDR and _PATTERN of one node: "top.s1.node3", "switch.switch.node".
struct SlurmAddress {
  std::string address, pattern;
};

struct Places {
  std::vector<NodePlace> nodes;      // as many as were asked about, by natural_less of their names
  std::string source;                // how it is known: "names (node-{rack:3}-{slot:2})", "Slurm's switches"
  std::vector<std::string> notices;  // what is not known, and what follows from that
};

// By the names, where the site says how they are called; else by Slurm's addresses, where all nodes have one that names
// a switch: group is then the outermost level at which these nodes differ, rack the innermost. Nodes of which nothing
// is known have neither, with a notice. Throws Error(config) for a name that is there twice.
Places find_places(std::vector<std::string> nodes, const Site& site, const std::map<std::string, SlurmAddress>& slurm);

// Of notices: "a, b, c and 12 more".
std::string some_of(const std::vector<std::string>& names, std::size_t most = 3);

}  // namespace ananke
