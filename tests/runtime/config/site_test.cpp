#include "runtime/config/site.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

TEST(SiteReader, NamesTheNearestSite) {
  EXPECT_ERROR(load_site("lokal"), ErrorKind::config, "no site 'lokal'", "/site", "did you mean 'local'?");
  EXPECT_ERROR(load_site(""), ErrorKind::config, "no site ''");
  EXPECT_ERROR(load_site("/nonexistent/site.textproto"), ErrorKind::config,
               "/nonexistent/site.textproto does not exist");
}

TEST(SiteReader, NamesThePlaceOfAMistake) {
  const TemporaryFolder folder;
  const auto load = [&](const std::string& text) { return load_site(folder.write("s.textproto", text).string()); };
  EXPECT_ERROR(load("name: \"x\"\ndeadlines {\n  joni: \"3s\"\n}"), ErrorKind::config, "s.textproto:3:3",
               "did you mean 'join'?");
  EXPECT_ERROR(load("name: \"x\"\ndeadlines {\n  join: \"soon\"\n}"), ErrorKind::config, "s.textproto:3:3",
               "deadlines.join", "soon");
  // A wait that is over before it begins.
  EXPECT_ERROR(load("name: \"x\"\ndeadlines {\n  join: \"0s\"\n}"), ErrorKind::config, "s.textproto:3:3",
               "deadlines.join is \"0s\", but must be above 0");
  EXPECT_ERROR(load("name: \"x\"\nstalls { least: \"0 min\" }"), ErrorKind::config, "stalls.least is \"0 min\"");
  EXPECT_ERROR(load("start: SRUN"), ErrorKind::config, "name is missing");
  EXPECT_ERROR(load("name: \"x\"\nhealth { quick_deadline: \"soon\" }"), ErrorKind::config, "s.textproto:2:10",
               "health.quick_deadline");
}

TEST(SiteReader, RefusesTwoEntriesForOneThing) {
  const TemporaryFolder folder;
  for (const char* twice :
       {R"(health { file_system { path: "/x" } file_system { path: "/x" } })",
        R"(health { threshold { check: "a" value: "v" } threshold { check: "a" value: "v" } })",
        R"(health { skip: "a" skip: "a" })", R"(machine { file_system { path: "$H" } file_system { path: "$H" } })",
        R"(machine { partition { name: "p" } partition { name: "p" } })",
        R"(environment { variable { name: "V" } variable { name: "V" value: "1" } })",
        R"(environment { known_bad { name: "V" why: "a" } known_bad { name: "V" why: "b" } })"}) {
    const auto file = folder.write("s.textproto", std::string("name: \"x\"\n") + twice);
    EXPECT_ERROR(load_site(file.string()), ErrorKind::config, "s.textproto:2:", "[1] is for '",
                 "remove one of the two");
  }
  const auto other = folder.write("s.textproto", R"(name: "x" health { threshold { check: "a" value: "v" }
      threshold { check: "a" value: "w" } threshold { check: "b" } } environment {
      known_bad { name: "V" value: "1" why: "a" } known_bad { name: "V" value: "2" why: "b" } })");
  EXPECT_EQ(load_site(other.string()).health().threshold_size(), 3);
}

TEST(SiteReader, ReadsTheLocalSiteWithItsDefaults) {
  const Site site = load_site("local");
  EXPECT_EQ(site.name(), "local");
  EXPECT_EQ(site.start(), Site::LOCAL);
  EXPECT_EQ(site.deadlines().join(), "60s");
}

TEST(RanksWantedOnNode, AreThoseOfSlurmElseOneForEachGpu) {
  Site site;
  EXPECT_EQ(ranks_wanted_on_node(site, 384), 0);
  site.mutable_hardware()->set_gpus(4);
  EXPECT_EQ(ranks_wanted_on_node(site, 384), 4);
  EXPECT_EQ(ranks_wanted_on_node(site, 2), 2) << "fewer ranks than a node has GPUs";
  site.mutable_slurm()->set_ranks_per_node(2);
  EXPECT_EQ(ranks_wanted_on_node(site, 384), 2);
}

TEST(SiteReader, LooksInTheVariableFirst) {
  const TemporaryFolder folder;
  folder.write("local/site.textproto", "name: \"mine\"");
  setenv("ANANKE_SITE_PATH", folder.path().c_str(), 1);
  const Site site = load_site("local");
  unsetenv("ANANKE_SITE_PATH");
  EXPECT_EQ(site.name(), "mine");
}

}  // namespace
}  // namespace ananke
