// `ananke health` and spare nodes with a real Slurm cluster of several nodes.
#include <google/protobuf/util/json_util.h>

#include "ananke/health.pb.h"
#include "tests/system/slurm_cluster.h"

namespace ananke {
namespace {

class SlurmHealth : public SlurmTest {
 protected:
  // Nodes of the cluster are namespaces of one machine: what runs elsewhere on it is no leftover, and its memory and
  // GPUs, whatever they are like, are not what is tested.
  void write_site(const std::string& more = "", const std::string& slurm = "") const {
    std::string skip;
    for (const char* id : {"plugin.gpu_checks", "mem.unattributed", "mem.hbm_cache", "gpu.count", "gpu.use",
                           "gpu.idle_mem", "gpu.remap", "gpu.ecc", "gpu.clocks", "gpu.pcie", "gpu.c2c", "gpu.nvlink",
                           "gpu.driver", "gpu.context", "ib.port", "ib.flap", "cpu.online", "lib.twice"}) {
      skip += fmt::format(" skip: \"{}\"", id);
    }
    write("site.textproto", "name: \"cluster\" start: SRUN network_interface: \"eth0\" slurm { " + slurm +
                                " }\nhealth { shared_nodes: true "
                                "start_deadline: \"60s\" quick_deadline: \"60s\"" +
                                skip + more + " }\n");
  }
  // Runs a command in an allocation of the first four nodes; its two streams apart.
  CommandOutput in_allocation(const std::vector<std::string>& words) {
    std::vector<std::string> all{"salloc", "--quiet", "--nodelist=node[0-3]", "--ntasks-per-node=2"};
    all.insert(all.end(), words.begin(), words.end());
    return run_command(all, milliseconds(200'000));
  }
  std::string site() const { return (folder / "site.textproto").string(); }
  static const CheckResult* find(const NodeHealth& node, const std::string& id) {
    for (const CheckResult& check : node.check()) {
      if (check.id() == id) return &check;
    }
    return nullptr;
  }
};

TEST_F(SlurmHealth, EveryNodeOfAnAllocationIsOneLine) {
  write_site();
  const CommandOutput said = in_allocation({ananke, "health", "--site", site(), "--format", "json"});
  HealthReport report;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(said.output, &report).ok()) << said.output << said.errors;
  ASSERT_EQ(report.node_size(), 4);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(report.node(i).node(), fmt::format("node{}", i));
    const CheckResult* interface = find(report.node(i), "net.interface");
    ASSERT_NE(interface, nullptr) << said.output;
    EXPECT_EQ(interface->verdict(), PASS) << interface->reason();
    ASSERT_NE(find(report.node(i), "time.skew"), nullptr);
    EXPECT_EQ(find(report.node(i), "time.skew")->verdict(), PASS);
  }
  EXPECT_EQ(static_cast<int>(report.exit_code()), said.code);
  EXPECT_NE(report.job(), "");
}

TEST_F(SlurmHealth, ANodeThatIsCutOffIsUnknownAndNamed) {
  write_site();
  const std::string script = fmt::format("{} cut --name {} node2; {} health --site {}; echo code $?", tool,
                                         ANANKE_TEST_CLUSTER, ananke, site());
  const CommandOutput said = in_allocation({"sh", "-c", script});
  heal("node2");
  EXPECT_NE(said.output.find("node2  UNKNOWN"), std::string::npos) << said.output << said.errors;
  EXPECT_NE(said.output.find("node2"), said.output.rfind("node2")) << "among those to exclude";
  EXPECT_NE(said.output.find("code 1"), std::string::npos) << said.output;
}

TEST_F(SlurmHealth, AJobTakesTheNodesThatAreWell) {
  // A file that one node alone does not have: what each sees below /tmp is the same, so a process's own is taken.
  write_site("\n  file_system { path: \"/proc/sys/kernel\" }");
  // By a batch script: what salloc starts is not on a node, where ranks could not reach it.
  const std::string job = submit({"--nodelist=node[0-3]", "--ntasks-per-node=2"},
                                 {"--spares", "2", "--set", "training.steps=3"});
  EXPECT_EQ(wait_for_end(job), "COMPLETED");
  EXPECT_TRUE(says("2 spare nodes; of 4 nodes that are there"));
  EXPECT_TRUE(says("nodes that are not needed: node"));
  HealthReport report;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(text_of(folder / "run/health.json"), &report).ok());
  EXPECT_EQ(report.node_size(), 4);
}

TEST_F(SlurmHealth, WithTooFewThatAreWellTheJobIsRefused) {
  write_site("\n  file_system { path: \"/nowhere\" }");
  const CommandOutput said = in_allocation({ananke, "run", (folder / "job.textproto").string(), "--site", site(),
                                            "--run-dir", (folder / "run").string(), "--spares", "2"});
  EXPECT_EQ(said.code, static_cast<int>(ErrorKind::config)) << said.output << said.errors;
  EXPECT_NE(said.errors.find("no node of job"), std::string::npos) << said.errors;
  EXPECT_NE(said.errors.find("FAIL (fs./nowhere: /nowhere: No such file or directory)"), std::string::npos)
      << said.errors;
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}

TEST_F(SlurmHealth, SubmitAllocatesTheSpareNodes) {
  write_site();
  const CommandOutput said =
      run_command({ananke, "submit", (folder / "job.textproto").string(), "--site", site(), "--run-dir",
                   (folder / "run").string(), "--nodes", "2", "--spares", "1", "--dry-run"},
                  milliseconds(60'000));
  EXPECT_EQ(said.code, 0) << said.errors;
  EXPECT_NE(said.output.find("#SBATCH --nodes=3\n"), std::string::npos) << said.output;
  EXPECT_NE(said.output.find("#SBATCH --ntasks-per-node=2\n"), std::string::npos) << said.output;
  EXPECT_NE(said.output.find(" --spares 1"), std::string::npos) << said.output;
}

// The whole way, by PMIx and by Slurm's variables: three nodes for a job of two, one of which lacks a file.
TEST_F(SlurmHealth, AJobOfSubmitDoesWithoutTheBadNodeOfThree) {
  const std::string file = "/dev/shm/ananke-test." + folder.filename().string();  // each node has its own
  for (const char* node : {"node0", "node2"}) EXPECT_EQ(on_node(node, {"cp", "/etc/hostname", file}).code, 0);
  std::vector<std::vector<std::string>> found;
  for (const std::string& mpi : {std::string("pmix"), std::string("none")}) {
    write_site("\n  file_system { path: \"" + file + "\" }",
               "mpi: \"" + mpi + "\" batch { option: \"--nodelist=node[0-2]\" }");
    const CommandOutput said =
        run_command({ananke, "submit", (folder / "job.textproto").string(), "--site", site(), "--run-dir",
                     (folder / mpi).string(), "--nodes", "2", "--spares", "1", "--set", "training.steps=5"},
                    milliseconds(60'000));
    ASSERT_EQ(said.code, 0) << said.errors;
    const auto at = said.output.find("submitted job ") + 14;
    const std::string job = said.output.substr(at, said.output.find(';', at) - at);
    jobs.push_back(job);
    EXPECT_EQ(wait_for_end(job), "COMPLETED");
    const std::string output = text_of(folder / mpi / "logs" / ("slurm-" + job + ".out"));
    EXPECT_NE(output.find("--mpi=" + mpi), std::string::npos) << output;
    EXPECT_NE(output.find("1 spare nodes; of 3 nodes that are there 2 will do"), std::string::npos) << output;
    EXPECT_NE(output.find("node1 FAIL (fs." + file), std::string::npos) << output;
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(place_of(rank, mpi).node, rank < 2 ? "node0" : "node2");
    found.push_back(losses(mpi));
  }
  EXPECT_EQ(found[0].size(), 5u);
  EXPECT_EQ(found[0], found[1]);
  for (const char* node : {"node0", "node2"}) EXPECT_EQ(on_node(node, {"rm", file}).code, 0);
}

}  // namespace
}  // namespace ananke
