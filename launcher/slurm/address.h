// The address by which workers on other nodes reach the launcher.
#pragma once

#include <chrono>
#include <string>

namespace ananke {

struct AddressRule {
  std::string name;               // "%h-fabric.cluster.internal": %h is this node's name; empty: none
  std::string network_interface;  // the site's: an interface of this node, or an address; may be empty
};

// A numeric IPv4 address, and never one that only this node can use (loopback, link-local). By the rule's name; else of
// the interface; else what this node's own name resolves to; else the one address that this node has. `host`: this node
// as Slurm names it. Throws Error(config) naming the node, the rule and what was found.
std::string launcher_address(const AddressRule& rule, const std::string& host, std::chrono::milliseconds deadline);

// The rule's name for a node.
std::string apply_rule(const std::string& rule, const std::string& host);

// Whether other nodes can use it: dotted, and neither 127.*, 169.254.* nor 0.*.
bool is_reachable_address(const std::string& address);

}  // namespace ananke
