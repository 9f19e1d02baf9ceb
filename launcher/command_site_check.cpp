// `ananke site check NAME`: is the profile of a site what this machine is?
#include <boost/program_options.hpp>
#include <cstdio>

#include "ananke/site.pb.h"
#include "launcher/command.h"
#include "launcher/command_options.h"
#include "launcher/site_check.h"
#include "runtime/base/error.h"
#include "runtime/base/process.h"
#include "runtime/base/units.h"
#include "runtime/config/site.h"

namespace ananke {
namespace {

namespace po = boost::program_options;

const char* text_of(SiteFact::Verdict verdict) {
  switch (verdict) {
    case SiteFact::Verdict::same: return "as said";
    case SiteFact::Verdict::differs: return "DIFFERS";
    case SiteFact::Verdict::unknown: break;
  }
  return "UNKNOWN";
}

void print_facts(const std::vector<SiteFact>& facts) {
  std::size_t what = 4, expected = 7;
  for (const SiteFact& fact : facts) {
    what = std::max(what, fact.what.size());
    expected = std::max(expected, fact.expected.size());
  }
  for (const SiteFact& fact : facts) {
    std::fputs(fmt::format("  {}  {:<{}}  {:<{}}  {}\n", text_of(fact.verdict), fact.what, what, fact.expected,
                           expected, fact.found)
                   .c_str(),
               stdout);
  }
}

void print_quotas(const Site& site) {
  for (const SiteFileSystem& file_system : site.machine().file_system()) {
    if (file_system.quota_command().empty()) continue;
    std::printf("quota of %s: %s\n", file_system.path().c_str(), file_system.quota_command().c_str());
  }
}

std::size_t count_of(const std::vector<SiteFact>& facts, SiteFact::Verdict verdict) {
  return static_cast<std::size_t>(std::ranges::count(facts, verdict, &SiteFact::verdict));
}

}  // namespace

int command_site_check(const Arguments& arguments) {
  std::string name, deadline = "10s", root;
  CommandOptions options(
      "site check", "SITE [options]",
      "Compares a site's profile with the machine that this runs on, best a compute node: CPUs, NUMA\n"
      "nodes, GPUs, interfaces, limits, Slurm, file systems, and the variables that NCCL reads. Exit\n"
      "code 3 where something differs or would break a job, 8 where something cannot be found out.");
  options.word("SITE", name);
  options.add()("deadline", po::value(&deadline)->value_name("DURATION")->default_value(deadline),
                "for each command that is asked: nvidia-smi, sinfo, srun, stat")(
      "root", po::value(&root)->value_name("DIR"), "folder that holds proc and sys; default: the site's memory.root");
  if (!options.read(arguments)) return 0;
  const Site site = load_site(name);
  SiteCheckOptions check;
  check.root = root.empty() ? site.memory().root() : root;
  check.host = host_name();
  check.deadline = parse_duration(deadline);
  check.environment = this_environment();
  const std::vector<SiteFact> facts = check_site(site, check);
  std::printf("site '%s' and %s:\n", site.name().c_str(), check.host.c_str());
  print_facts(facts);
  const EnvironmentUse use{.ranks = 1, .several_nodes = true};
  bool refused = false;
  for (const EnvironmentFinding& finding : lint_environment(with_site_variables(check.environment, site), site, use)) {
    std::printf("  %s  %s\n", finding.refuse ? "REFUSED" : "warning", finding.text.c_str());
    refused = refused || finding.refuse;
  }
  print_quotas(site);
  const std::size_t differs = count_of(facts, SiteFact::Verdict::differs);
  const std::size_t unknown = count_of(facts, SiteFact::Verdict::unknown);
  std::printf("%zu as said, %zu differ, %zu unknown\n", facts.size() - differs - unknown, differs, unknown);
  if (differs > 0 || refused) return static_cast<int>(ErrorKind::config);
  return unknown > 0 ? static_cast<int>(ErrorKind::resource) : 0;
}

}  // namespace ananke
