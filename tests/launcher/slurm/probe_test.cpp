// What Slurm's programs say, as their versions say it, and programs that fail or hang.
#include "launcher/slurm/probe.h"

#include <gtest/gtest.h>

#include "launcher/slurm/address.h"
#include "launcher/slurm/command.h"
#include "launcher/slurm/task_report.h"
#include "runtime/base/error.h"
#include "tests/launcher/slurm/fake_programs.h"
#include "tests/patience.h"
#include "tests/refusal.h"

namespace ananke {
namespace {

using std::chrono::milliseconds;
using Names = std::vector<std::string>;

TEST(SlurmVersion, IsReadFromWhatSrunSays) {
  const SlurmVersion version = parse_slurm_version("slurm 22.05.8\n");
  EXPECT_EQ(version.text, "22.05.8");
  EXPECT_TRUE(version.at_least(22, 5) && version.at_least(21, 8) && !version.at_least(22, 6));
  EXPECT_TRUE(parse_slurm_version("slurm-wlm 25.11.0-0rc1").at_least(25, 11));
  EXPECT_FALSE(parse_slurm_version("something else").known());
  EXPECT_FALSE(parse_slurm_version("").known());
}

TEST(MpiList, IsReadInEveryLayout) {
  EXPECT_EQ(parse_mpi_list("MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\nspecific pmix plugin versions available: "
                           "pmix_v4,pmix_v5\n"),
            (Names{"pmix", "none", "pmi2", "pmix_v4", "pmix_v5"}));
  EXPECT_EQ(parse_mpi_list("srun: MPI types are...\nsrun: none\nsrun: pspmix\n"), (Names{"none", "pspmix"}));
  EXPECT_EQ(parse_mpi_list("srun: error: cannot find mpi plugin\n"), Names{});
}

TEST(ChooseMpi, TakesTheFirstThatIsThereAndSaysWhy) {
  SlurmTraits traits;
  traits.mpi = {"none", "pmi2", "pmix"};
  EXPECT_EQ(choose_mpi(traits, {"pmix", "none"}).first, "pmix");
  EXPECT_EQ(choose_mpi(traits, {"none", "pmix"}).first, "none");
  EXPECT_EQ(choose_mpi(traits, {"pspmix", "none"}).first, "none");
  EXPECT_EQ(refusal(ErrorKind::config, [&] { choose_mpi(traits, {"pspmix"}); }),
            "the site wants one of --mpi=pspmix, but srun offers none, pmi2, pmix; add \"none\" to slurm.mpi of the "
            "site, or what is offered");
  traits.mpi = {};
  traits.mpi_problem = "`srun --mpi=list` ended with exit code 1: no luck";
  EXPECT_EQ(choose_mpi(traits, {"pmix", "none"}), (std::pair<std::string, std::string>("none", traits.mpi_problem)));
  EXPECT_NE(refusal(ErrorKind::config, [&] { choose_mpi(traits, {"pmix"}); }).find("no luck"), std::string::npos);
}

TEST(LiveNodes, AreThoseThatCanRunAStep) {
  const Names nodes{"a", "b", "c", "d", "e", "f", "g"};
  const LiveNodes sorted =
      sort_by_state(nodes, "a allocated\nb down\nc mixed*\nd draining\ne drained\nf idle\nf idle*\n");
  EXPECT_EQ(sorted.live, (Names{"a", "d", "g"}));
  const std::vector<std::pair<std::string, std::string>> gone{
      {"b", "down"}, {"c", "mixed*"}, {"e", "drained"}, {"f", "idle*"}};
  EXPECT_EQ(sorted.gone, gone);
  EXPECT_EQ(sort_by_state({"a"}, "a completing+\n").live, Names{"a"});
  EXPECT_EQ(sort_by_state({"a"}, "a down$\n").live, Names{});
}

TEST(TaskReport, IsReadBack) {
  TaskReport report{.rank = 3, .process = 77, .host = "node1", .step = "12.0"};
  const auto started = parse_report(to_line(report));
  ASSERT_TRUE(started);
  EXPECT_EQ(to_line(*started), to_line(report));
  EXPECT_FALSE(started->end);
  report.end = ExitStatus{.signal = 9, .code = 0, .core_dumped = true};
  report.out_of_memory = true;
  const auto ended = parse_report(to_line(report));
  ASSERT_TRUE(ended && ended->end);
  EXPECT_EQ(to_line(*ended), to_line(report));
  for (const char* line : {"", "hello", "ananke-task ", "ananke-task rank=x process=1", "ananke-task rank=1",
                           "ananke-task rank=1 process=2 host=a step=b code=1"}) {
    EXPECT_FALSE(parse_report(line)) << line;
  }
}

TEST(LauncherAddress, IsNoneThatOnlyThisNodeCanUse) {
  for (const char* address : {"127.0.0.1", "127.0.1.1", "169.254.3.1", "0.0.0.0", "", "fe80::1", "10.0.0", "node0"}) {
    EXPECT_FALSE(is_reachable_address(address)) << address;
  }
  EXPECT_TRUE(is_reachable_address("10.231.1.10"));
  EXPECT_EQ(apply_rule("%h-interconnect-1.jupiter.internal", "jpbo-001-02"),
            "jpbo-001-02-interconnect-1.jupiter.internal");
  EXPECT_EQ(apply_rule("%hi", "a%h"), "a%hi");
  const auto refused = [](const AddressRule& rule) {
    return refusal(ErrorKind::config, [&] { launcher_address(rule, "node7", test_patience); });
  };
  EXPECT_EQ(refused({"localhost", ""}),
            "on node7 the site's slurm.launcher_address 'localhost' makes 'localhost', which is 127.0.0.1 here, "
            "which other nodes cannot reach; correct the site, or remove that line and set network_interface");
  EXPECT_NE(
      refused({"", "lo"}).find("network_interface 'lo' has the address 127.0.0.1, which other nodes cannot reach"),
      std::string::npos);
  EXPECT_NE(refused({"", "ib17"}).find("network_interface 'ib17' is not among those that are up"), std::string::npos);
}

TEST_F(FakePrograms, ThatHangOrFailAreQuoted) {
  program("srun", "sleep 100 & sleep 100");
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(refusal(ErrorKind::stalled, [] { probe_slurm(milliseconds(100)); }),
            "`srun --version` did not end within 100 ms and said nothing");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, test_patience) << "its children are waited for";
  program("srun", "echo one; echo two >&2; exit 3");
  EXPECT_EQ(refusal(ErrorKind::resource, [] { probe_slurm(test_patience); }),
            "`srun --version` ended with exit code 3: two");
  EXPECT_EQ(refusal(ErrorKind::resource,
                    [] {
                      output_of({"no-such-program", "a b"}, test_patience);
                    }),
            "`no-such-program 'a b'` ended with exit code 127: ananke: cannot execute no-such-program: No such "
            "file or directory");
  program("endless", "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done");
  EXPECT_EQ(run_command({"endless"}, milliseconds(50)).code, 128 + 9);
  const std::string endless = refusal(ErrorKind::resource, [] { output_of({"yes"}, test_patience); });
  EXPECT_TRUE(endless.starts_with("`yes` was killed after it had said 16.")) << endless.substr(0, 80);  // and one read
  EXPECT_NE(endless.find(" MiB: y | y"), std::string::npos) << endless.substr(0, 80);
}

// A site whose default plugin cannot be loaded: even asking fails unless another is named.
TEST_F(FakePrograms, SrunIsAskedWithoutItsDefaultPlugin) {
  program("srun",
          "case $1 in --version) echo slurm 23.11.4;; *) [ \"$SLURM_MPI_TYPE\" = none ] || exit 1\n"
          "printf 'MPI plugin types are...\\n\\tnone\\n' >&2;; esac");
  const SlurmTraits traits = probe_slurm(test_patience);
  EXPECT_EQ(traits.mpi, Names{"none"});
  EXPECT_TRUE(traits.version.at_least(23, 11));
  program("srun", "case $1 in --version) echo slurm 23.11.4;; *) echo can not load PMIx library >&2; exit 1;; esac");
  EXPECT_EQ(choose_mpi(probe_slurm(test_patience), {"pmix", "none"}),
            (std::pair<std::string, std::string>("none",
                                                 "`srun --mpi=list` ended with exit code 1: can not load PMIx "
                                                 "library")));
}

TEST_F(FakePrograms, NodesCountAsThereWhereNobodyCanTell) {
  program("sinfo", "echo 'Unable to contact slurm controller' >&2; exit 1");
  const LiveNodes nodes = find_live_nodes({"a", "b"}, test_patience);
  EXPECT_EQ(nodes.live, (Names{"a", "b"}));
  EXPECT_NE(nodes.problem.find("Unable to contact slurm controller"), std::string::npos) << nodes.problem;
}

}  // namespace
}  // namespace ananke
