#include <algorithm>
#include <vector>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "runtime/config/job.h"
#include "runtime/config/override.h"
#include "runtime/config/path.h"
#include "runtime/config/plugins.h"
#include "runtime/config/rules.h"
#include "runtime/config/text.h"
#include "runtime/config/validate.h"
#include "tests/fuzz/target.h"

namespace ananke::fuzz {
namespace {

constexpr const char* name = "job.textproto";

const PluginsAtHand& at_hand() {
  static const auto found = find_plugins({}, {std::filesystem::path(ANANKE_BINARY_DIR) / "tests/config_library"});
  return *found;
}

// Comments of the form "#--set path=value" are overrides, so that they are read and changed like the rest.
std::vector<std::string> overrides_in(std::string_view text) {
  constexpr std::string_view mark = "#--set ";
  std::vector<std::string> overrides;
  for (std::size_t at = text.find(mark); at != std::string_view::npos && overrides.size() < 16;
       at = text.find(mark, at)) {
    at += mark.size();
    overrides.emplace_back(text.substr(at, text.find('\n', at) - at));
  }
  return overrides;
}

void locate_all(const Problems& problems, const SourceText& source, const Job& job) {
  for (const Problem& problem : problems) {
    const std::string place = locate(source, at_hand().schema, job, problem.path);
    require(place.starts_with(name), "a place outside the file");
    check_message(Error(ErrorKind::config, place + ": " + problem.path + " " + problem.message), ErrorKind::config,
                  name);
  }
}

// The steps of load_job(), without its files: plugins are searched once, and not hashed.
void read_job(std::string_view text, const std::vector<std::string>& overrides, Job& job) {
  SourceText source{name, std::string(text), nullptr};
  Job skeleton;
  parse_text(source, Schema(), Reading::tolerant, &skeleton);
  parse_text(source, at_hand().schema, Reading::strict, &job);
  for (const std::string& change : overrides) {
    expect_value_or_error(ErrorKind::config, "--set", [&] {
      const std::string path = apply_override(parse_override(change), at_hand().schema, &job);
      require(locate(source, at_hand().schema, job, path).starts_with(name), "a place outside the file");
    });
  }
  const std::string printed = print_job(job, at_hand().schema);
  Job again;
  parse_piece("printed", printed, at_hand().schema, &again);
  require(print_job(again, at_hand().schema) == printed, "a printed job reads back as another");

  const Problems rules = check_rules(job, at_hand().schema);
  locate_all(rules, source, job);
  if (!rules.empty()) return;
  Problems problems = complete_plugins(at_hand(), &job);
  for (const Problems& more : {check_job(job, 1), check_job(job, 6), check_files(job)}) {
    problems.insert(problems.end(), more.begin(), more.end());
  }
  locate_all(problems, source, job);
  write_defaults(at_hand().schema, &job);
}

void read_site(std::string_view text) {
  const Schema schema;
  SourceText source{name, std::string(text), nullptr};
  Site site;
  parse_text(source, schema, Reading::strict, &site);
  check_rules(site, schema);
}

}  // namespace
}  // namespace ananke::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ananke;
  using namespace ananke::fuzz;
  static const Folder folder;
  const std::string_view text = text_of(data, size);
  const std::vector<std::string> overrides = overrides_in(text);
  Job job;
  expect_value_or_error(ErrorKind::config, name, [&] { read_job(text, overrides, job); });
  expect_value_or_error(ErrorKind::config, name, [&] { read_site(text); });
  // Now and then the whole, from a file; not where it names files that are plugins or weights.
  const bool own =
      std::any_of(overrides.begin(), overrides.end(), [](auto& one) { return one.find("library") != one.npos; });
  if (size % 256 == 0 && !own && text.find("library") == text.npos) {
    const auto file = folder.write(name, text);
    expect_value_or_error(ErrorKind::config, "", [&] {
      load_job({.file = file, .overrides = overrides, .ranks = 2, .plugin_folders = at_hand().folders});
    });
  }
  return 0;
}
