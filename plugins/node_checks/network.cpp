// InfiniBand ports, their counters, and the interface of the site's profile, from /sys.
#include <algorithm>
#include <cmath>

#include "ananke/site.pb.h"
#include "plugins/node_checks/node_checks.h"
#include "runtime/base/kernel_text.h"

namespace ananke::node_checks {
namespace {

namespace fs = std::filesystem;

struct Port {
  std::string name;  // "mlx5_0/1"
  fs::path folder;
};

// Ports that are InfiniBand's, not Ethernet's; one of which that cannot be told is a finding.
std::vector<Port> ports_of(const CheckContext& context, Findings& found) {
  std::vector<Port> ports;
  const fs::path all = context.root / "sys/class/infiniband";
  for (const std::string& adapter : names_in(all)) {
    for (const std::string& number : names_in(all / adapter / "ports")) {
      Port port{fmt::format("{}/{}", adapter, number), all / adapter / "ports" / number};
      const std::optional<std::string> layer = line_of(port.folder / "link_layer");
      if (!layer) found.unknown(fmt::format("{}: link_layer cannot be read", port.name));
      if (!layer || *layer == "InfiniBand") ports.push_back(std::move(port));
    }
  }
  return ports;
}

// "200 Gb/sec (2X NDR)".
std::optional<double> rate_of(const std::string& text) {
  double rate = 0;
  if (std::sscanf(text.c_str(), "%lf Gb/sec", &rate) != 1 || !std::isfinite(rate) || rate < 0) return std::nullopt;
  return rate;
}

// Whether it is active and fast enough.
bool judge_port(const Port& port, double least, Findings& found) {
  const auto state = line_of(port.folder / "state"), physical = line_of(port.folder / "phys_state");
  const auto rate_text = line_of(port.folder / "rate");
  const std::optional<double> rate = rate_text ? rate_of(*rate_text) : std::nullopt;
  if (!state || !rate || !physical) {
    found.unknown(fmt::format("{}: {} cannot be read", port.name, !state ? "state" : rate ? "phys_state" : "rate"));
    return true;
  }
  found.number("rate", port.name, *rate, "Gbit/s", HealthValue::HIGHER);
  if (*state != "4: ACTIVE") {
    found.fail(DEFECT, fmt::format("{} is {} ({})", port.name, *state, *physical));
    return false;
  }
  if (*rate < least) {
    found.fail(DEFECT,
               fmt::format("{} runs at {:.6g} Gbit/s ({}) and should at {:.6g}", port.name, *rate, *rate_text, least));
  }
  return true;
}

CheckResult check_ports(const CheckContext& context) {
  Findings found(context);
  const SiteHealth& site = context.site.health();
  const std::vector<Port> ports = ports_of(context, found);
  if (ports.empty() && site.ports() == 0) return found.skipped("there is no InfiniBand, and the site expects none");
  std::size_t active = 0;
  for (const Port& port : ports) active += judge_port(port, site.port_gbit(), found) ? 1 : 0;
  if (ports.size() < site.ports()) {
    const bool any = fs::exists(context.root / "sys/class/infiniband");
    const std::string text = fmt::format("{} InfiniBand ports, and the site has {}", ports.size(), site.ports());
    any ? found.fail(DEFECT, text) : found.unknown(text + "; there is no /sys/class/infiniband");
  }
  return found.result(fmt::format("{} ports active", active));
}

std::optional<double> earlier_counter(const CheckContext& context, const std::string& name, const std::string& entity) {
  if (context.earlier == nullptr) return std::nullopt;
  for (const CheckResult& check : context.earlier->check()) {
    for (const HealthValue& value : check.value()) {
      if (value.compare() == HealthValue::COUNTER && value.name() == name && value.entity() == entity) {
        return value.number();
      }
    }
  }
  return std::nullopt;
}

// Counters grow from the loading of the driver on; what they grew by since the last check is judged, where there was
// one.
CheckResult check_flaps(const CheckContext& context) {
  Findings found(context);
  const std::vector<Port> ports = ports_of(context, found);
  if (ports.empty()) {
    if (context.site.health().ports() > 0) found.unknown("there is no InfiniBand port whose counters could be read");
    return found.skipped("there is no InfiniBand, and the site expects none");
  }
  for (const Port& port : ports) {
    for (const char* name : {"link_downed", "link_error_recovery"}) {
      const auto text = line_of(port.folder / "counters" / name);
      const std::optional<std::uint64_t> count = text ? parse_number(*text) : std::nullopt;
      if (!count) {
        found.unknown(fmt::format("{}: counter {} cannot be read", port.name, name));
        continue;
      }
      const double now = static_cast<double>(*count);
      const std::optional<double> before = earlier_counter(context, name, port.name);
      const bool since = before && *before <= now;  // a driver that was loaded again counts from 0
      found.number(name, port.name, now, "", HealthValue::COUNTER);
      found.judge(name, since ? now - *before : now,
                  fmt::format("{}: {} grew by {:.0f} since {}", port.name, name, since ? now - *before : now,
                              since ? "the check of " + context.earlier->time() : "the driver was loaded"),
                  "look at cable and switch port; of several nodes, those with most are the likely cause");
    }
  }
  return found.result(fmt::format("no link of {} went down", ports.size()));
}

CheckResult check_interface(const CheckContext& context) {
  Findings found(context);
  const std::string& name = context.site.network_interface();
  if (name.empty() || name.find_first_not_of("0123456789.") == std::string::npos) {
    return found.skipped("the site names no interface (network_interface)");
  }
  const fs::path folder = context.root / "sys/class/net" / name;
  const auto state = line_of(folder / "operstate");
  if (!state) {
    const std::vector<std::string> others = names_in(context.root / "sys/class/net");
    if (others.empty() || std::ranges::find(others, name) != others.end()) {
      found.unknown(fmt::format("the state of interface {} cannot be read", name));
    } else {
      found.fail(DEFECT, fmt::format("there is no interface {}; there are {}", name, joined(others)),
                 "load its driver, or correct network_interface of the site");
    }
  } else if (*state != "up" && *state != "unknown") {
    found.fail(DEFECT, fmt::format("interface {} is {}", name, *state));
  }
  return found.result(fmt::format("interface {} is up", name));
}

}  // namespace

std::vector<NodeCheck> network_checks(const Site& site) {
  const std::string port = "sys/class/infiniband/*/ports/*/";
  return {
      {{.id = "ib.port",
        .description = "InfiniBand ports are active and as fast as the site has them",
        .sensors = {port + "state", port + "phys_state", port + "rate", port + "link_layer"}},
       check_ports},
      {{.id = "ib.flap",
        .description = "links that went down since the last check, or since the driver was loaded",
        .thresholds = {{"link_downed", "", false, 1.0, 0.0, "times, of one port"},
                       {"link_error_recovery", "", false, {}, 0.0, "times, of one port"}},
        .sensors = {port + "counters/link_downed", port + "counters/link_error_recovery", port + "link_layer"}},
       check_flaps},
      {{.id = "net.interface",
        .description = "the site's network_interface is up",
        .sensors = {"sys/class/net/" + site.network_interface() + "/operstate"}},
       check_interface},
  };
}

}  // namespace ananke::node_checks
