#include "launcher/nccl_environment.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>

#include "ananke/site.pb.h"
#include "launcher/nccl_variables.h"
#include "runtime/base/error.h"
#include "runtime/base/nearest.h"
#include "runtime/base/units.h"

extern char** environ;

namespace ananke {
namespace {

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (;;) {
    const std::size_t comma = text.find(',', begin);
    parts.push_back(text.substr(begin, comma - begin));
    if (comma == std::string::npos) return parts;
    begin = comma + 1;
  }
}

std::string list_of(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

class Linter {
 public:
  Linter(const Environment& environment, const Site& site, const EnvironmentUse& use)
      : environment_(environment), site_(site), use_(use) {}

  std::vector<EnvironmentFinding> findings() {
    names();
    numbers();
    words();
    interfaces();
    conflicts();
    waits();
    habits();
    known_bad();
    std::ranges::stable_sort(found_, {}, &EnvironmentFinding::variable);
    return std::move(found_);
  }

 private:
  std::string value(const std::string& name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() ? "" : found->second;
  }
  bool is(const std::string& name, long number) const { return nccl_number(value(name)) == number; }
  template <class... Args>
  void add(bool refuse, const std::string& name, fmt::format_string<Args...> text, Args&&... args) {
    found_.push_back(
        {name, fmt::format("{}='{}': {}", name, value(name), fmt::format(text, std::forward<Args>(args)...)), refuse});
  }
  template <class... Args>
  void warn(const std::string& name, fmt::format_string<Args...> text, Args&&... args) {
    add(false, name, text, std::forward<Args>(args)...);
  }
  template <class... Args>
  void refuse(const std::string& name, fmt::format_string<Args...> text, Args&&... args) {
    add(true, name, text, std::forward<Args>(args)...);
  }

  void names() {
    const std::set<std::string> known(known_nccl_names().begin(), known_nccl_names().end());
    for (const auto& [name, value] : environment_) {
      if (!name.starts_with("NCCL_") || value.empty()) continue;
      if (std::isspace(static_cast<unsigned char>(value.front())) ||
          std::isspace(static_cast<unsigned char>(value.back()))) {
        warn(name, "NCCL takes the blanks at its begin or end for a part of it; remove them");
      }
      if (known.count(name) != 0) continue;
      const std::string nearest = nearest_name(name, known_nccl_names());
      if (!nearest.empty()) {
        warn(name, "NCCL has no such variable and passes it over; is {} meant?", nearest);
      } else {
        warn(name, "NCCL up to {} has no such variable; unless yours is newer, it is passed over: unset it",
             newest_known_nccl);
      }
    }
  }

  void numbers() {
    for (const NumberRule& rule : number_rules()) {
      const std::string text = value(rule.name);
      if (text.empty()) continue;
      const auto number = nccl_number(text);
      if (!number) {
        warn(rule.name, "that is no number, so NCCL passes it over; set {} to {}", rule.least, rule.most);
      } else if (*number < rule.least || *number > rule.most) {
        refuse(rule.name, "{}, so {} to {} are possible; correct or unset it", rule.why, rule.least, rule.most);
      } else if (rule.power_of_two && (*number & (*number - 1)) != 0) {
        refuse(rule.name, "{}, and this is none of them; correct or unset it", rule.why);
      }
    }
  }

  void words() {
    for (const WordRule& rule : word_rules()) {
      std::string text = value(rule.name);
      if (text.empty() || (rule.numbers && nccl_number(text))) continue;
      if (rule.list && text.find_first_of(":;") != std::string::npos) continue;  // a choice for each collective
      if (rule.list && text.starts_with('^')) text.erase(0, 1);
      for (const std::string& word : rule.list ? split(text) : std::vector<std::string>{text}) {
        const bool known =
            std::ranges::any_of(rule.words, [&](const std::string& one) { return lower(one) == lower(word); });
        if (known) continue;
        warn(rule.name, "NCCL does not know '{}'; it knows {}{}", word, list_of(rule.words),
             rule.numbers ? ", or a number" : "");
      }
    }
  }

  // As NCCL reads it: "=ib0" that one, "ib" all that begin so, "^lo,docker" all but those.
  void interfaces() {
    const std::string name = "NCCL_SOCKET_IFNAME", text = value(name);
    if (text.empty() || text.starts_with('^')) return;
    std::vector<std::string> wanted = split(text.starts_with('=') ? text.substr(1) : text);
    const auto local = [](const std::string& one) {
      return one.starts_with("lo") || one.starts_with("docker") || one.starts_with("virbr");
    };
    if (use_.several_nodes && std::ranges::all_of(wanted, local)) {
      refuse(name, "no other node can be reached by it; name the interface of the network{}, or unset it", of_site());
    }
    const std::string& site = site_.network_interface();
    const bool by_name = !site.empty() && std::isalpha(static_cast<unsigned char>(site.front()));
    const bool other = std::ranges::none_of(wanted, [&](const std::string& one) { return site.starts_with(one); });
    if (by_name && other && !std::ranges::all_of(wanted, local)) {
      warn(name, "site '{}' has its network at {}", site_.name(), site);
    }
  }
  std::string of_site() const {
    return site_.network_interface().empty()
               ? ""
               : fmt::format(" ({} at site '{}')", site_.network_interface(), site_.name());
  }

  void at_most(const std::string& least, const std::string& most) {
    const auto low = nccl_number(value(least)), high = nccl_number(value(most));
    if (low && high && *low > *high) refuse(least, "more than {}='{}' allows", most, value(most));
  }

  void conflicts() {
    if (is("NCCL_IB_DISABLE", 1) && !value("NCCL_IB_HCA").empty()) {
      warn("NCCL_IB_HCA", "NCCL_IB_DISABLE=1 means that none is used; unset one of the two");
    }
    if (is("NCCL_NET_GDR_READ", 1) && (is("NCCL_NET_GDR_LEVEL", 0) || lower(value("NCCL_NET_GDR_LEVEL")) == "loc")) {
      warn("NCCL_NET_GDR_READ", "with NCCL_NET_GDR_LEVEL={} no GPU's memory is read by a NIC",
           value("NCCL_NET_GDR_LEVEL"));
    }
    const std::string algorithms = lower(value("NCCL_ALGO"));
    if ((algorithms == "nvls" || algorithms == "nvlstree") && is("NCCL_NVLS_ENABLE", 0)) {
      refuse("NCCL_ALGO", "NCCL_NVLS_ENABLE=0 forbids the only one that is left; unset one of the two");
    }
    const auto threads = nccl_number(value("NCCL_SOCKET_NTHREADS")),
               sockets = nccl_number(value("NCCL_NSOCKS_PERTHREAD"));
    if (threads && sockets && *threads > 0 && *sockets > 64 / *threads) {
      refuse("NCCL_NSOCKS_PERTHREAD",
             "with NCCL_SOCKET_NTHREADS={} these are {} sockets for each of them, and NCCL has at most 64 for a "
             "connection",
             *threads, *sockets);
    }
    at_most("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS");
    at_most("NCCL_MIN_CTAS", "NCCL_MAX_CTAS");
    at_most("NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS");
    if (lower(value("NCCL_NET_PLUGIN")) == "none" && !value("NCCL_NET").empty() && lower(value("NCCL_NET")) != "ib" &&
        lower(value("NCCL_NET")) != "socket") {
      refuse("NCCL_NET", "that network comes from a plugin, and NCCL_NET_PLUGIN=none forbids it; unset one of the two");
    }
  }

  // A peer that does not answer is given up after RETRY_CNT timeouts; NCCL's own defaults are 20 and 7, about 30 s.
  void waits() {
    const long exponent = nccl_number(value("NCCL_IB_TIMEOUT")).value_or(20);
    const long retries = nccl_number(value("NCCL_IB_RETRY_CNT")).value_or(7);
    const std::string name = value("NCCL_IB_TIMEOUT").empty() ? "NCCL_IB_RETRY_CNT" : "NCCL_IB_TIMEOUT";
    if (value(name).empty() || exponent < 0 || exponent > 31 || retries < 0 || retries > 7) return;
    if (exponent == 0) return warn(name, "0 means without end: a dead link is never noticed; set 18 to 22");
    const double seconds = 4.096e-6 * std::pow(2.0, static_cast<double>(exponent)) * static_cast<double>(retries);
    const double step = std::chrono::duration<double>(parse_duration(site_.deadlines().step())).count();
    if (seconds > step) {
      warn(name, "a dead link is given up after {} ({} times 4.096 us x 2^{}), later than a step's deadline of {}",
           format_duration(seconds), retries, exponent, format_duration(step));
    }
  }

  // What other frameworks ask for and this one cannot have, and what makes a job slow without a word.
  void habits() {
    if (is("CUDA_DEVICE_MAX_CONNECTIONS", 1)) {
      refuse("CUDA_DEVICE_MAX_CONNECTIONS",
             "collectives and the kernels beside them would share one queue and wait for each other; unset it");
    }
    if (!value("NCCL_COMM_ID").empty()) {
      refuse(
          "NCCL_COMM_ID",
          "all communicators would be set up at this one address, and a job has several; ranks tell each other where: "
          "unset it");
    }
    if (is("NCCL_COMM_BLOCKING", 1)) {
      refuse("NCCL_COMM_BLOCKING", "calls into NCCL would wait for peers that are gone, past every deadline; unset it");
    }
    if (is("NCCL_LAUNCH_ORDER_IMPLICIT", 0)) {
      warn("NCCL_LAUNCH_ORDER_IMPLICIT",
           "communicators of different streams may then start in another order on each rank, and wait for each other; "
           "unset it");
    }
    if (is("NCCL_P2P_DISABLE", 1))
      warn("NCCL_P2P_DISABLE", "GPUs of a node then exchange through the host's memory, not by NVLink");
    const bool infiniband = !site_.machine().infiniband().empty();
    if (infiniband && use_.several_nodes && is("NCCL_IB_DISABLE", 1)) {
      warn("NCCL_IB_DISABLE", "site '{}' has InfiniBand ({}), and nodes would talk by TCP", site_.name(),
           site_.machine().infiniband(0));
    }
    if (infiniband && use_.several_nodes && lower(value("NCCL_NET")) == "socket") {
      warn("NCCL_NET", "site '{}' has InfiniBand ({}), and nodes would talk by TCP", site_.name(),
           site_.machine().infiniband(0));
    }
    const std::string debug = lower(value("NCCL_DEBUG"));
    if ((debug == "info" || debug == "trace") && value("NCCL_DEBUG_FILE").empty() && use_.ranks > 64) {
      warn("NCCL_DEBUG",
           "each of {} ranks writes it into its log; NCCL_DEBUG_FILE=/tmp/nccl.%h.%p keeps it on the nodes",
           use_.ranks);
    }
  }

  void known_bad() {
    for (const KnownBadValue& bad : site_.environment().known_bad()) {
      const std::string now = value(bad.name());
      if (now.empty() || (!bad.value().empty() && lower(bad.value()) != lower(now))) continue;
      add(bad.refuse(), bad.name(), "at site '{}': {}", site_.name(), bad.why());
    }
  }

  const Environment& environment_;
  const Site& site_;
  const EnvironmentUse& use_;
  std::vector<EnvironmentFinding> found_;
};

}  // namespace

Environment this_environment() {
  Environment all;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) all.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return all;
}

std::vector<EnvironmentFinding> lint_environment(const Environment& environment, const Site& site,
                                                 const EnvironmentUse& use) {
  return Linter(environment, site, use).findings();
}

std::vector<std::pair<std::string, std::string>> missing_site_variables(const Environment& environment,
                                                                        const Site& site) {
  std::vector<std::pair<std::string, std::string>> missing;
  for (const SiteVariable& variable : site.environment().variable()) {
    if (environment.count(variable.name()) == 0) missing.emplace_back(variable.name(), variable.value());
  }
  return missing;
}

Environment with_site_variables(Environment environment, const Site& site) {
  for (auto& [name, value] : missing_site_variables(environment, site))
    environment.emplace(std::move(name), std::move(value));
  return environment;
}

}  // namespace ananke
