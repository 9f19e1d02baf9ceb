#include "launcher/site_check.h"

#include <sys/resource.h>
#include <sys/utsname.h>

#include <algorithm>

#include "ananke/site.pb.h"
#include "launcher/command.h"
#include "runtime/config/site.h"
#include "tests/launcher/slurm/fake_programs.h"
#include "tests/refusal.h"
#include "tests/runtime/memory/node_trees.h"

namespace ananke {
namespace {

using Verdict = SiteFact::Verdict;
using std::chrono::milliseconds;

// A node as JUPITER's are: the recorded tree of a GH200 node, and programs that say what they would there.
class SiteCheckTest : public FakePrograms {
 protected:
  SiteCheckTest() : tree_("gh200_healthy") {
    for (char** one = environ; *one;) {  // what is linted is this test's
      const std::string variable = *one, name = variable.substr(0, variable.find('='));
      const bool linted = name.starts_with("NCCL_") || name == "CUDA_DEVICE_MAX_CONNECTIONS";
      linted ? static_cast<void>(unsetenv(name.c_str())) : static_cast<void>(++one);
    }
    write("sys/devices/system/cpu/online", "0-287\n");
    for (const char* device :
         {"net/ib0", "net/lo", "infiniband/mlx5_0", "infiniband/mlx5_1", "infiniband/mlx5_2", "infiniband/mlx5_3"}) {
      std::filesystem::create_directories(tree_.root() / "sys/class" / device);
    }
    program("nvidia-smi", "for i in 1 2 3 4; do echo NVIDIA GH200 120GB; done");
    program("sinfo",
            "case $1 in --version) echo slurm 24.05.3;; *) echo 'booster|12:00:00'; echo 'debug|30:00';; esac");
    program("srun", "case $1 in --version) echo slurm 24.05.3;; --mpi=list) echo none; echo pmix;; esac");
    program("stat", "echo gpfs");
    options_.root = tree_.root();
    options_.host = "jpbo-021-29";
    options_.deadline = milliseconds(20'000);
    options_.environment = {{"HOME", "/e/home/me"}, {"PROJECT", "/e/project1/p"}, {"SCRATCH", "/e/scratch/p"}};
    site_ = load_site("jupiter");
    utsname system{};
    uname(&system);
    site_.mutable_machine()->set_architecture(system.machine);  // of the machine that the test runs on, and its limits
    site_.mutable_machine()->set_locked_memory("1");
    site_.mutable_machine()->set_open_files(1);
  }
  void write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories((tree_.root() / file).parent_path());
    std::ofstream(tree_.root() / file) << text;
  }
  SiteFact fact(const std::string& what) const {
    for (const SiteFact& one : check_site(site_, options_)) {
      if (one.what == what) return one;
    }
    ADD_FAILURE() << "no fact '" << what << "'";
    return {};
  }
  void expect(Verdict verdict, const std::string& what, const std::string& found) const {
    expect_all(verdict, {what}, found);
  }
  void expect_all(Verdict verdict, const std::vector<std::string>& facts, const std::string& found) const {
    const std::vector<SiteFact> all = check_site(site_, options_);
    for (const std::string& what : facts) {
      const auto one = std::ranges::find(all, what, &SiteFact::what);
      ASSERT_NE(one, all.end()) << what;
      EXPECT_EQ(one->verdict, verdict) << what << ": " << one->expected << ", " << one->found;
      EXPECT_NE(one->found.find(found), std::string::npos) << what << ": " << one->found;
    }
  }

  NodeTree tree_;
  SiteCheckOptions options_;
  Site site_;
};

TEST_F(SiteCheckTest, FindsNothingAtAHealthyNode) {
  const std::vector<SiteFact> facts = check_site(site_, options_);
  EXPECT_GE(facts.size(), 18u);
  for (const SiteFact& one : facts) {
    EXPECT_EQ(one.verdict, Verdict::same) << one.what << ": " << one.expected << ", " << one.found;
  }
}

TEST_F(SiteCheckTest, TellsEveryDifference) {
  options_.host = "jpbl03";
  expect(Verdict::differs, "name of a compute node", "jpbl03");
  site_.mutable_machine()->set_architecture("vax");
  EXPECT_EQ(fact("architecture").verdict, Verdict::differs);
  write("sys/devices/system/cpu/online", "0-71\n");
  expect(Verdict::differs, "CPUs", "72");
  site_.mutable_machine()->set_cpu_numa_nodes(8);
  expect(Verdict::differs, "NUMA nodes with CPUs", "4");
  site_.mutable_machine()->set_numa_memory("200 GiB");
  EXPECT_EQ(fact("memory of each of them").verdict, Verdict::differs);
  program("nvidia-smi", "echo NVIDIA GH200 120GB; echo NVIDIA H100");
  expect(Verdict::differs, "GPUs", "2");
  expect(Verdict::differs, "GPUs' name", "NVIDIA H100");
  std::filesystem::remove(tree_.root() / "sys/class/infiniband/mlx5_2");
  int missing = 0;
  for (const SiteFact& one : check_site(site_, options_)) {
    if (one.what == "InfiniBand" && one.verdict == Verdict::differs) {
      ++missing;
      EXPECT_EQ(one.expected, "mlx5_2");
      EXPECT_EQ(one.found, "mlx5_0, mlx5_1, mlx5_3");
    }
  }
  EXPECT_EQ(missing, 1);
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  if (files.rlim_cur != RLIM_INFINITY) {
    site_.mutable_machine()->set_open_files(files.rlim_cur + 1);
    expect(Verdict::differs, "open files", std::to_string(files.rlim_cur));
  }
  program("sinfo", "case $1 in --version) echo slurm 21.08.8;; *) echo 'booster|06:00:00';; esac");
  expect(Verdict::differs, "Slurm", "21.08.8");
  expect(Verdict::differs, "partition booster", "06:00:00");
  program("sinfo", "echo 'other|1-00:00:00'");
  expect(Verdict::differs, "partition booster", "there are other");
  site_.mutable_slurm()->clear_mpi();
  site_.mutable_slurm()->add_mpi("pmi2");
  expect(Verdict::differs, "srun --mpi", "none, pmix");
  program("stat", "echo nfs");
  expect(Verdict::differs, "file system $HOME", "nfs (/e/home/me)");
}

TEST_F(SiteCheckTest, SaysUnknownWhereItCannotTellAndWaitsForNobody) {
  for (const char* name : {"nvidia-smi", "sinfo", "srun", "stat"}) program(name, "sleep 100");
  options_.deadline = milliseconds(50);
  expect_all(Verdict::unknown, {"GPUs", "Slurm", "partition booster", "srun --mpi", "file system $HOME"},
             "did not end within 50 ms");
  options_.deadline = milliseconds(20'000);
  for (const char* name : {"nvidia-smi", "sinfo", "srun", "stat"}) program(name, "echo out of order >&2; exit 3");
  expect_all(Verdict::unknown, {"GPUs", "Slurm", "partition booster", "file system $HOME"}, "out of order");
  options_.environment.erase("SCRATCH");
  expect(Verdict::unknown, "file system $SCRATCH", "$SCRATCH is not set here");
  std::filesystem::remove_all(tree_.root() / "sys/devices");
  expect(Verdict::unknown, "CPUs", "cannot be read");
  expect(Verdict::unknown, "NUMA nodes with CPUs", "NUMA");
  expect(Verdict::unknown, "memory of each of them", "");
  program("sinfo", "echo 'booster|soon'");
  expect(Verdict::unknown, "partition booster", "its limit is 'soon'");
}

TEST_F(SiteCheckTest, ReadsSlurmsTimes) {
  site_.mutable_machine()->mutable_partition(0)->set_time_limit("24h");
  for (const auto& [limit, verdict] : std::vector<std::pair<std::string, Verdict>>{{"1-00:00:00", Verdict::same},
                                                                                   {"infinite", Verdict::same},
                                                                                   {"24:00:00", Verdict::same},
                                                                                   {"23:59:59", Verdict::differs},
                                                                                   {"30:00", Verdict::differs}}) {
    program("sinfo", "echo 'booster|" + limit + "'");
    EXPECT_EQ(fact("partition booster").verdict, verdict) << limit;
  }
}

TEST_F(SiteCheckTest, ComparesNothingThatTheProfileLeavesOut) {
  site_.Clear();
  site_.set_name("empty");
  EXPECT_TRUE(check_site(site_, options_).empty());
}

int run(const std::vector<std::string>& words) {
  for (const Command& command : all_commands()) {
    if (std::string(command.name) == "site check") return command.run(words);
  }
  ADD_FAILURE() << "there is no command site check";
  return -1;
}

TEST_F(SiteCheckTest, IsACommandThatSaysByItsExitCodeHowItWent) {
  EXPECT_ERROR(run({}), ErrorKind::usage, "exactly one SITE");
  EXPECT_ERROR(run({"jupitre"}), ErrorKind::config, "did you mean 'jupiter'?");
  EXPECT_ERROR(run({"local", "--deadline", "soon"}), ErrorKind::config, "soon");
  const auto check = [&](const std::string& machine) {
    std::ofstream(file("s.textproto")) << "name: \"s\" start: LOCAL " << machine;
    testing::internal::CaptureStdout();
    const int code = run({file("s.textproto"), "--root", tree_.root().string()});
    const std::string output = testing::internal::GetCapturedStdout();
    return fmt::format("{}: {}", code, output);
  };
  EXPECT_NAMES(check("machine { cpus: 288 }"), "0: site 's' and ");
  EXPECT_NAMES(check("machine { cpus: 288 }"), "  as said  CPUs  288      288\n1 as said, 0 differ, 0 unknown\n");
  EXPECT_NAMES(check("machine { cpus: 36 }"), "3: site 's'");
  EXPECT_NAMES(check("machine { cpus: 36 }"), "  DIFFERS  CPUs  36       288\n");
  program("nvidia-smi", "exit 9");
  EXPECT_NAMES(check("machine { cpus: 288 } hardware { gpus: 4 }"), "8: site 's'");
  EXPECT_NAMES(check("environment { variable { name: \"NCCL_IB_TIMEOUT\" value: \"100\" } }"),
               "  REFUSED  NCCL_IB_TIMEOUT");
  EXPECT_NAMES(check("machine { file_system { path: \"$NOWHERE\" quota_command: \"lfs quota\" } }"),
               "quota of $NOWHERE: lfs quota\n");
}

}  // namespace
}  // namespace ananke
