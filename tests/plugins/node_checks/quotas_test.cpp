// The answers of sites' quota commands, and the check that asks one.
#include "plugins/node_checks/quotas.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "tests/plugins/node_checks/machine.h"
#include "tests/refusal.h"

namespace ananke::node_checks {
namespace {

SiteQuota fields(SiteQuota::Format format, const std::string& names) {
  SiteQuota quota;
  quota.set_format(format);
  std::istringstream words(names);
  std::string word;
  for (auto* field : {quota.mutable_path(), quota.mutable_bytes_used(), quota.mutable_bytes_limit(),
                      quota.mutable_files_used(), quota.mutable_files_limit()}) {
    if (words >> word) *field = word;
  }
  return quota;
}

constexpr const char* as_json = R"([
  {"project": "abc", "project-dir": "/e/project1/abc", "data-usage": "1000KB", "data-hard-limit": "4000KB",
   "inode-usage": "3", "inode-hard-limit": "10"},
  {"project": "abc", "project-dir": "/e/scratch/abc", "data-usage": 500, "data-hard-limit": 0, "inode-usage": 9,
   "inode-hard-limit": 10}])";
constexpr const char* json_fields = "project-dir data-usage data-hard-limit inode-usage inode-hard-limit";

TEST(Quotas, OfAnArrayTheInnermostFolderCounts) {
  const SiteQuota quota = fields(SiteQuota::JSON, json_fields);
  const QuotaUse project = read_quota(quota, as_json, "/e/project1/abc/me/run");
  EXPECT_EQ(project.bytes, 1e6);
  EXPECT_EQ(project.bytes_limit, 4e6);
  EXPECT_EQ(project.files, 3);
  EXPECT_EQ(project.files_limit, 10);
  const QuotaUse scratch = read_quota(quota, as_json, "/e/scratch/abc/");
  EXPECT_EQ(scratch.bytes, 500 * 1024.0) << "without a unit";
  EXPECT_EQ(scratch.bytes_limit, 0);
  EXPECT_ERROR(read_quota(quota, as_json, "/e/scratch/abcd"), ErrorKind::data, "nothing of /e/scratch/abcd",
               "/e/project1/abc, /e/scratch/abc");
}

TEST(Quotas, OfATableColumnsAreKnownByTheirNames) {
  const SiteQuota quota = fields(SiteQuota::TABLE, "Filesystem kbytes limit files filelimit");
  const std::string blanks =
      "Disk quotas for usr me:\n"
      "  Filesystem kbytes quota limit grace files quota2 filelimit\n"
      "  /home 900* 800 1024 6d 12 100 120\n";
  const QuotaUse use = read_quota(quota, blanks, "/home/me");
  EXPECT_EQ(use.bytes, 900 * 1024.0);
  EXPECT_EQ(use.bytes_limit, 1024 * 1024.0);
  EXPECT_EQ(use.files, 12);
  EXPECT_EQ(use.files_limit, 120);
  const std::string commas = "name, Filesystem,kbytes ,limit,files,filelimit\nme,/home,1 GB,2 GB,-,none\n";
  EXPECT_EQ(read_quota(quota, commas, "/home").bytes_limit, 2e9);
  EXPECT_EQ(read_quota(quota, commas, "/home").files_limit, 0);
}

TEST(Quotas, AnAnswerThatDoesNotTellIsRefused) {
  const SiteQuota quota = fields(SiteQuota::JSON, json_fields), table = fields(SiteQuota::TABLE, json_fields);
  EXPECT_ERROR(read_quota(quota, "error: no such project", "/e"), ErrorKind::data, "the quota command");
  EXPECT_ERROR(read_quota(quota, "{}", "/e"), ErrorKind::data, "no array");
  EXPECT_ERROR(read_quota(quota, "[]", "/e"), ErrorKind::data, "but of no folder");
  EXPECT_ERROR(read_quota(quota, R"([{"project-dir": "/e"}])", "/e"), ErrorKind::data, "names no 'data-usage'",
               "it has project-dir");
  EXPECT_ERROR(read_quota(quota, R"([{"project-dir": "/e", "data-usage": "much"}])", "/e"), ErrorKind::data,
               "'much' for data-usage");
  EXPECT_ERROR(read_quota(table, "nothing\n", "/e"), ErrorKind::data, "no line with a column 'project-dir'");
}

class QuotaCheck : public ::testing::Test {
 protected:
  QuotaCheck() {
    setenv("ANANKE_TEST_QUOTA", folder_.path().c_str(), 1);
    unsetenv("SLURM_NODEID");
    SiteFileSystem& system = *site_.mutable_machine()->add_file_system();
    system.set_path("$ANANKE_TEST_QUOTA/run");
    *system.mutable_quota() = fields(SiteQuota::TABLE, "where used most files mostfiles");
    says("500", "1000");
  }
  ~QuotaCheck() override { unsetenv("ANANKE_TEST_QUOTA"); }
  void says(const std::string& used, const std::string& files) {
    command(fmt::format("printf 'where used most files mostfiles\\n%s {} 1000 {} 1000\\n' \"$ANANKE_TEST_QUOTA\"", used,
                        files));
  }
  void command(const std::string& text) { site_.mutable_machine()->mutable_file_system(0)->set_quota_command(text); }
  CheckResult check() const {
    const NodeChecksFolder plugin;
    const CheckSet checks(site_, plugin.folders());
    for (const CheckSet::Entry& entry : checks.entries()) {
      if (!entry.spec.id.starts_with("fs.quota.")) continue;
      const NodeGpus none;
      return entry.check->run(entry.spec.id, {.site = site_,
                                              .level = QUICK,
                                              .root = "/",
                                              .node = "n1",
                                              .gpus = none,
                                              .thresholds = entry.spec.thresholds});
    }
    ADD_FAILURE() << "there is no such check";
    return {};
  }
  void expect(HealthVerdict verdict, const std::string& reason) const {
    const CheckResult result = check();
    EXPECT_EQ(HealthVerdict_Name(result.verdict()), HealthVerdict_Name(verdict)) << result.reason();
    EXPECT_NAMES(result.reason(), reason);
    EXPECT_TRUE(verdict != FAIL || result.cause() == SETTING) << "no node is drained for it";
  }
  TemporaryFolder folder_;
  Site site_;
};

TEST_F(QuotaCheck, IsOfUsedSharesOfBytesAndFiles) {
  says("500", "899");
  expect(PASS, "899 files in");
  says("950", "10");
  expect(WARN, "are used (95%)");
  says("10", "1000");
  expect(FAIL, "1.00K of 1.00K files are used (100%)");
}

TEST_F(QuotaCheck, OfACommandThatFailsIsAWarning) {
  command("exit 3");
  expect(WARN, "`exit 3` failed (exit code 3)");
  command("echo \"$ANANKE_NOT_SET\"");
  expect(WARN, "failed (exit code");
  command("echo no quotas");
  expect(WARN, "no line with a column 'where'");
}

TEST_F(QuotaCheck, IsNotMadeWhereNobodyCanSay) {
  setenv("SLURM_NODEID", "3", 1);
  expect(SKIPPED, "the first node of the allocation asks");
  unsetenv("SLURM_NODEID");
  unsetenv("ANANKE_TEST_QUOTA");
  expect(SKIPPED, "$ANANKE_TEST_QUOTA/run is not set here");
}

}  // namespace
}  // namespace ananke::node_checks
