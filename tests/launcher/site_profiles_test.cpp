// The profiles that come with the product: they can be read, they hold together, and what they know stands in no code.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "ananke/site.pb.h"
#include "launcher/nccl_environment.h"
#include "launcher/slurm/batch_script.h"
#include "launcher/slurm/command.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/config/site.h"
#include "runtime/topology/host_names.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

const fs::path source = ANANKE_SOURCE_DIR;

std::vector<std::string> site_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(source / "site")) {
    if (fs::exists(entry.path() / "site.textproto")) names.push_back(entry.path().filename());
  }
  std::ranges::sort(names);
  return names;
}

std::string text_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST(SiteProfiles, CanAllBeReadAndAreCalledAsTheirFolders) {
  EXPECT_EQ(site_names(), (std::vector<std::string>{"alps", "jupiter", "leonardo", "local", "local-cluster"}));
  for (const std::string& name : site_names()) EXPECT_EQ(load_site(name).name(), name);
}

TEST(SiteProfiles, SetNothingThatTheyWouldWarnOf) {
  for (const std::string& name : site_names()) {
    const Site site = load_site(name);
    for (const auto& finding : lint_environment(with_site_variables({}, site), site, {384, true})) {
      ADD_FAILURE() << name << ": " << finding.text;
    }
    for (const SiteVariable& variable : site.environment().variable()) EXPECT_FALSE(variable.why().empty()) << name;
  }
}

TEST(SiteProfiles, HaveADatedSourceForEveryQuirk) {
  for (const char* name : {"jupiter", "alps", "leonardo"}) {
    std::istringstream lines(text_of(source / "site" / name / "README.md"));
    const std::regex cells(R"(\| (.+) \| (.+) \|)"), year(R"(20[12][0-9])");
    int rows = 0;
    for (std::string line; std::getline(lines, line);) {
      std::smatch parts;
      const bool row = std::regex_match(line, parts, cells) && parts[1] != "what" && parts[1].str().find("---") != 0 &&
                       parts[1] != "job" && !parts[1].str().starts_with("job |") &&
                       !parts[1].str().starts_with("`jobs/");
      if (!row) continue;
      ++rows;
      const std::string where = parts[2];
      const bool ours =
          where.find("our choice") != std::string::npos || where.find("the design of") != std::string::npos;
      EXPECT_TRUE(ours || std::regex_search(where, year) || where.find("torchrun_jsc") != std::string::npos) << line;
    }
    EXPECT_GE(rows, 6) << name;
  }
}

TEST(SiteProfiles, PlaceTheNamesOfTheirNodes) {
  const auto place = [](const char* site, const char* node) {
    const auto found = patterns_of(load_site(site).topology()).front().place_of(node);
    return found ? fmt::format("{}/{}/{}", found->group, found->rack, found->slot) : "none";
  };
  EXPECT_EQ(place("jupiter", "jpbo-021-29"), "5/21/29");
  EXPECT_EQ(place("jupiter", "jpbo-107-45"), "22/107/45");
  EXPECT_EQ(place("jupiter", "jpbl01"), "none") << "a login node";
  EXPECT_EQ(place("alps", "nid005123"), "//-1");
  EXPECT_EQ(place("alps", "jpbo-021-29"), "none");
  EXPECT_EQ(place("leonardo", "lrdn0123"), "//-1");
  EXPECT_EQ(place("leonardo", "lrdn3457"), "none");
}

TEST(SiteProfiles, MakeBatchScripts) {
  for (const char* name : {"jupiter", "alps", "leonardo"}) {
    const Site site = load_site(name);
    BatchRequest request;
    request.job_name = "job";
    request.nodes = 96;
    request.ranks_per_node = ranks_wanted_on_node(site, 384);
    request.time_limit = std::chrono::ceil<std::chrono::seconds>(parse_duration(site.slurm().batch().time_limit()));
    request.lead_time = std::chrono::seconds(240);
    request.run_dir = "/runs/a";
    request.command = {"/bin/ananke", "run", "job.textproto"};
    const fs::path file = find_template(name);
    const std::string script =
        fill_template(text_of(file), batch_words(request, site, {25, 5, "25.05"}), file.string());
    EXPECT_NE(script.find("#SBATCH --ntasks-per-node=4\n"), std::string::npos) << name << script;
    EXPECT_NE(script.find("#SBATCH --gpus-per-node=4\n"), std::string::npos) << name << script;
    EXPECT_NE(script.find("#SBATCH --partition="), std::string::npos) << name << script;
    EXPECT_EQ(script.find("{{"), std::string::npos) << script;
  }
}

TEST(SiteProfiles, HaveScriptsThatAShellTakes) {
  int scripts = 0;
  for (const auto& entry : fs::recursive_directory_iterator(source / "site")) {
    if (entry.path().extension() != ".sbatch") continue;
    ++scripts;
    const CommandOutput said = run_command({"bash", "-n", entry.path().string()}, std::chrono::seconds(20));
    EXPECT_EQ(said.code, 0) << entry.path() << ": " << said.errors;
  }
  EXPECT_GE(scripts, 2);
}

// A site is data: no code, no schema and no message knows one by its name or by the names of its nodes.
TEST(SiteProfiles, AreInNoCode) {
  const std::vector<std::string> names{"jupiter", "jpbo", "jpbl",     "jülich", "juelich", "clariden",
                                       "nid00",   "cscs", "leonardo", "lrdn",   "cineca",  " alps"};
  const std::set<std::string> kinds{".cpp", ".h", ".cu", ".cuh", ".proto", ".txt", ".cmake"};
  int files = 0;
  for (const char* folder : {"runtime", "launcher", "plugins", "proto", "cmake"}) {
    for (const auto& entry : fs::recursive_directory_iterator(source / folder)) {
      if (!entry.is_regular_file() || kinds.count(entry.path().extension()) == 0) continue;
      ++files;
      std::string text = text_of(entry.path());
      std::ranges::transform(text, text.begin(),
                             [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
      for (const std::string& name : names) {
        EXPECT_EQ(text.find(name), std::string::npos) << entry.path() << " has '" << name << "'";
      }
    }
  }
  EXPECT_GT(files, 300);
}

}  // namespace
}  // namespace ananke
