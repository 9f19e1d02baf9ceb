#include "runtime/config/site.h"

#include <map>
#include <system_error>

#include "runtime/base/error.h"
#include "runtime/base/nearest.h"
#include "runtime/config/path.h"
#include "runtime/config/rules.h"
#include "runtime/config/text.h"
#include "runtime/plugin/search_path.h"
#include "runtime/topology/host_names.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

fs::path find_site(const std::string& name) {
  if (is_site_file(name)) return name;
  std::vector<std::string> known;
  const std::vector<fs::path> folders = site_search_path();
  for (const fs::path& folder : folders) {
    const fs::path file = folder / name / "site.textproto";
    std::error_code error;
    if (!name.empty() && fs::exists(file, error)) return file;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
      if (fs::exists(entry->path() / "site.textproto", error)) known.push_back(entry->path().filename());
    }
  }
  fail(ErrorKind::config, "there is no site '{}' in {}{}", name, list_of(folders), suggestion(name, known));
}

// Of two entries for one thing only one could count.
template <class Entries, class Key>
void refuse_twice(const SourceText& source, const std::string& path, const Entries& entries, const Key& key) {
  std::map<std::string, int> seen;
  for (int i = 0; i < entries.size(); ++i) {
    const auto [first, is_new] = seen.emplace(key(entries[i]), i);
    if (is_new) continue;
    fail(ErrorKind::config, "{}: {}[{}] is for '{}', as {}[{}] is: only one can count; remove one of the two",
         locate(source, Site::descriptor(), fmt::format("{}[{}]", path, i)), path, i, first->first, path,
         first->second);
  }
}

void refuse_duplicates(const SourceText& source, const Site& site) {
  const auto path = [](const auto& one) { return one.path(); };
  const auto name = [](const auto& one) { return one.name(); };
  refuse_twice(source, "health.file_system", site.health().file_system(), path);
  refuse_twice(source, "health.threshold", site.health().threshold(),
               [](const HealthThreshold& one) { return one.check() + (one.value().empty() ? "" : " ") + one.value(); });
  refuse_twice(source, "health.skip", site.health().skip(), [](const std::string& id) { return id; });
  refuse_twice(source, "machine.file_system", site.machine().file_system(), path);
  refuse_twice(source, "machine.partition", site.machine().partition(), name);
  refuse_twice(source, "environment.variable", site.environment().variable(), name);
  refuse_twice(source, "environment.known_bad", site.environment().known_bad(),
               [](const KnownBadValue& one) { return one.name() + "=" + one.value(); });
}

}  // namespace

std::vector<fs::path> site_search_path() {
  Folders candidates = folders_in_variable("ANANKE_SITE_PATH");
  candidates.push_back(runtime_folder() / "../../site");            // <source>/build/lib/libananke.so
  candidates.push_back(runtime_folder() / "../share/ananke/site");  // <prefix>/lib/libananke.so
  Folders folders;
  for (const fs::path& folder : candidates) {
    std::error_code error;
    if (fs::is_directory(folder, error)) folders.push_back(fs::canonical(folder, error));
  }
  return folders;
}

bool is_site_file(const std::string& name) {
  return name.find('/') != std::string::npos || name.ends_with(".textproto");
}

std::string site_from_anywhere(const std::string& name) {
  return is_site_file(name) ? fs::absolute(name).string() : name;
}

Site load_site(const std::string& name) {
  const Schema schema;
  SourceText source = read_source(find_site(name));
  Site site;
  parse_text(source, schema, Reading::strict, &site);
  const Problems problems = check_rules(site, schema);
  if (!problems.empty()) {
    const Problem& first = problems.front();
    fail(ErrorKind::config, "{}: {} {}", locate(source, Site::descriptor(), first.path), first.path, first.message);
  }
  for (int i = 0; i < site.topology().host_names_size(); ++i) {
    try {
      HostNamePattern{site.topology().host_names(i)};
    } catch (const Error& error) {
      fail(error.kind(), "{}: {}", locate(source, Site::descriptor(), fmt::format("topology.host_names[{}]", i)),
           error.what());
    }
  }
  refuse_duplicates(source, site);
  site.mutable_deadlines();
  site.mutable_memory();
  site.mutable_health();
  if (site.start() == Site::SRUN) site.mutable_slurm()->mutable_batch();
  write_defaults(schema, &site);
  return site;
}

int ranks_wanted_on_node(const Site& site, int ranks) {
  const std::uint32_t stated = site.slurm().ranks_per_node();
  return std::min(static_cast<int>(stated > 0 ? stated : site.hardware().gpus()), ranks);
}

}  // namespace ananke
