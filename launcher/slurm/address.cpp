#include "launcher/slurm/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "launcher/slurm/command.h"
#include "runtime/base/error.h"
#include "runtime/base/process.h"

namespace ananke {
namespace {

using std::chrono::milliseconds;

struct Interface {
  std::string name, address;
};

// IPv4 addresses of interfaces that are up.
std::vector<Interface> interfaces() {
  ifaddrs* first = nullptr;
  std::vector<Interface> found;
  if (getifaddrs(&first) != 0) return found;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, freeifaddrs);
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET || (one->ifa_flags & IFF_UP) == 0) continue;
    char text[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, text, sizeof text);
    found.push_back({one->ifa_name, text});
  }
  return found;
}

std::string list_of_addresses(const std::vector<Interface>& all) {
  std::string text;
  for (const Interface& one : all) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", one.name, one.address);
  return text.empty() ? "none" : text;
}

// What a name resolves to. By a process of its own: the system's resolver may take its time, and knows no deadline.
CommandOutput resolve(const std::string& name, milliseconds deadline) {
  return run_command({"getent", "ahostsv4", name}, deadline);
}

std::string first_reachable(const std::string& resolved) {
  std::istringstream lines(resolved);
  for (std::string line; std::getline(lines, line);) {
    std::string address = line.substr(0, line.find(' '));
    if (is_reachable_address(address)) return address;
  }
  return "";
}

std::string by_name(const AddressRule& rule, const std::string& host, milliseconds deadline) {
  const std::string name = apply_rule(rule.name, host);
  const CommandOutput answer = resolve(name, deadline);
  const std::string address = first_reachable(answer.output);
  if (!address.empty()) return address;
  const std::string why = answer.late             ? describe_failure({"getent", "ahostsv4", name}, answer, deadline)
                          : answer.output.empty() ? "is not known"
                                                  : "is " + answer.output.substr(0, answer.output.find(' ')) +
                                                        " here, which other nodes cannot reach";
  fail(ErrorKind::config,
       "on {} the site's slurm.launcher_address '{}' makes '{}', which {}; correct the site, or remove that line and "
       "set "
       "network_interface",
       host, rule.name, name, why);
}

std::string by_interface(const std::string& wanted, const std::string& host) {
  const std::vector<Interface> all = interfaces();
  for (const Interface& one : all) {
    if (one.name != wanted && one.address != wanted) continue;
    if (is_reachable_address(one.address)) return one.address;
    fail(ErrorKind::config,
         "on {} the site's network_interface '{}' has the address {}, which other nodes cannot reach; name another of "
         "those "
         "that are up: {}",
         host, wanted, one.address, list_of_addresses(all));
  }
  fail(
      ErrorKind::config,
      "on {} the site's network_interface '{}' is not among those that are up: {}; name one of them by which the other "
      "nodes are reached",
      host, wanted, list_of_addresses(all));
}

}  // namespace

bool is_reachable_address(const std::string& address) {
  in_addr parsed{};
  if (inet_pton(AF_INET, address.c_str(), &parsed) != 1) return false;
  const std::uint32_t value = ntohl(parsed.s_addr);
  return value >> 24 != 127 && value >> 24 != 0 && value >> 16 != 0xa9fe;
}

std::string apply_rule(const std::string& rule, const std::string& host) {
  std::string name = rule;
  for (std::size_t at = 0; (at = name.find("%h", at)) != std::string::npos; at += host.size())
    name.replace(at, 2, host);
  return name;
}

std::string launcher_address(const AddressRule& rule, const std::string& host, milliseconds deadline) {
  if (!rule.name.empty()) return by_name(rule, host, deadline);
  if (!rule.network_interface.empty()) return by_interface(rule.network_interface, host);
  for (const std::string& name : {host, host_name()}) {
    const std::string address = first_reachable(resolve(name, deadline).output);
    if (!address.empty()) return address;
  }
  std::vector<Interface> usable;
  for (Interface& one : interfaces()) {
    if (is_reachable_address(one.address)) usable.push_back(std::move(one));
  }
  if (usable.size() == 1) return usable.front().address;
  fail(ErrorKind::config,
       "on {} nothing says by which address the other nodes reach it: its name resolves to none, and its addresses are "
       "{}; "
       "set network_interface or slurm.launcher_address in the site",
       host, list_of_addresses(usable));
}

}  // namespace ananke
