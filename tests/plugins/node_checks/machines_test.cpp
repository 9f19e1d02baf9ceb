// Recorded machines: the right verdict, for the right reason, with the right exit code, and who is to be drained.
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/plugins/node_checks/machine.h"
#include "tests/refusal.h"

namespace ananke {
namespace {

struct Case {
  const char* name;
  const char* memory;
  std::vector<std::string> parts;
  HealthVerdict verdict;
  const char* id;      // of the check that is not PASS; empty: all are, or do not apply
  const char* reason;  // a part of it
  bool drained = false;
  const char* second = "";  // another check that is as bad
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

class Machines : public ::testing::TestWithParam<Case> {};

TEST_P(Machines, AreJudgedRightly) {
  const Case& one = GetParam();
  const Machine machine(one.memory, one.parts);
  const Site site = load_site("jupiter");
  const HealthReport report = health_of(machine, site);
  ASSERT_EQ(report.node_size(), 1);
  const NodeHealth& node = report.node(0);
  const std::string text = report_text(report);
  EXPECT_EQ(HealthVerdict_Name(report.verdict()), HealthVerdict_Name(one.verdict)) << text;
  EXPECT_EQ(report.exit_code(), is_bad(one.verdict) ? 1U : 0U);
  EXPECT_EQ(report.exclude(), is_bad(one.verdict) ? "n1" : "");
  EXPECT_EQ(report.drain_command_size(), one.drained ? 1 : 0) << text;
  for (const CheckResult& check : node.check()) {
    if (check.id() == one.id) {
      EXPECT_EQ(HealthVerdict_Name(check.verdict()), HealthVerdict_Name(one.verdict)) << check.reason();
      EXPECT_NAMES(check.reason(), one.reason);
    } else if (check.id() != one.second) {
      EXPECT_TRUE(check.verdict() == PASS || check.verdict() == SKIPPED) << check.id() << ": " << check.reason();
    }
  }
  EXPECT_NAMES(text, one.reason);
}

INSTANTIATE_TEST_SUITE_P(
    Recorded, Machines,
    ::testing::Values(
        Case{"Healthy", "gh200_healthy", {"jupiter"}, PASS, "", ""},
        Case{"SixtyGigabytesLeaked",
             "gh200_leak",
             {"jupiter"},
             FAIL,
             "mem.unattributed",
             "NUMA node 2: 59.9 GiB of 120 GiB unattributed, 57.8 GiB free or page cache",
             true,
             "mem.numa_cpu"},
        Case{"PageCacheFull", "gh200_cache_hog", {"jupiter"}, PASS, "", ""},
        Case{"GpusMemoryFullOfCache",
             "gh200_cache_on_devices",
             {"jupiter"},
             WARN,
             "mem.hbm_cache",
             "NUMA node 4, a GPU's memory: 20.0 GiB of 95.0 GiB are page cache"},
        Case{"Cdmm", "gh200_cdmm", {"jupiter"}, PASS, "", ""},
        Case{"LimitedByControlGroup",
             "gh200_cgroup",
             {"jupiter"},
             FAIL,
             "mem.cgroup",
             "/system.slice/slurmstepd.scope/job_77 (memory.max) leaves 98.0 GiB of 100 GiB"},
        Case{"NicDown",
             "gh200_healthy",
             {"jupiter", "nic_down"},
             FAIL,
             "ib.port",
             "mlx5_2/1 is 1: DOWN (3: Disabled)",
             true,
             "ib.flap"},
        Case{"NicSlow",
             "gh200_healthy",
             {"jupiter", "nic_slow"},
             FAIL,
             "ib.port",
             "mlx5_1/1 runs at 100 Gbit/s (100 Gb/sec (2X HDR)) and should at 200",
             true},
        Case{"NicFlapped",
             "gh200_healthy",
             {"jupiter", "nic_flapped"},
             WARN,
             "ib.flap",
             "mlx5_3/1: link_downed grew by 1 since the driver was loaded"},
        Case{"GpuMissing",
             "gh200_healthy",
             {"jupiter", "gpu_missing"},
             FAIL,
             "gpu.count",
             "3 GPUs, and the site has 4; on the PCI bus and not with the driver: 0029:01:00.0",
             true},
        Case{"GpuInUse",
             "gh200_healthy",
             {"jupiter", "gpu_in_use"},
             FAIL,
             "gpu.use",
             "GPU 2 (0029:01:00.0) is used by process 4711 (python3) of user 1234 with 20.0 GiB: no defect",
             false,
             "gpu.idle_mem"},
        Case{"GpuUsedBySomebodyUnseen",
             "gh200_healthy",
             {"jupiter", "gpu_busy_unseen"},
             FAIL,
             "gpu.use",
             "is busy (97%), by a process that is not to be seen from here: no defect",
             false,
             "gpu.idle_mem"},
        Case{"GpuMemoryHeldByNobody",
             "gh200_healthy",
             {"jupiter", "gpu_memory_held"},
             FAIL,
             "gpu.idle_mem",
             "21.0 GiB of its memory are used, and no process that holds it is to be seen",
             true},
        Case{"GpuRowToBeRemapped",
             "gh200_healthy",
             {"jupiter", "gpu_remap"},
             FAIL,
             "gpu.remap",
             "waits to be remapped",
             true},
        Case{"GpuWithErrors",
             "gh200_healthy",
             {"jupiter", "gpu_ecc"},
             WARN,
             "gpu.ecc",
             "9 uncorrected errors in its life"},
        Case{"GpuSlowedDown",
             "gh200_healthy",
             {"jupiter", "gpu_throttled"},
             FAIL,
             "gpu.clocks",
             "hardware slowdown; GPU 2 (0029:01:00.0) is slowed down: hardware thermal slowdown",
             true},
        Case{"NvlinkDown",
             "gh200_healthy",
             {"jupiter", "gpu_nvlink"},
             FAIL,
             "gpu.nvlink",
             "17 NVLinks active of 18",
             true},
        Case{"C2cDown", "gh200_healthy", {"jupiter", "gpu_c2c"}, FAIL, "gpu.c2c", "9 C2C links of 10", true},
        Case{"PcieLanes", "gh200_healthy", {"jupiter", "gpu_pcie"}, FAIL, "gpu.pcie", "8 PCIe lanes of 16", true},
        Case{
            "OldDriver", "gh200_healthy", {"jupiter", "old_driver"}, FAIL, "gpu.driver", "550.54.15 is older than 570"},
        Case{"LowLimits", "gh200_healthy", {"jupiter", "limits"}, FAIL, "limits", "Max locked memory is 8.00 MiB"},
        Case{"NotMounted",
             "gh200_healthy",
             {"jupiter", "not_mounted"},
             FAIL,
             "fs./e/project1",
             "/e/project1 is not mounted",
             true},
        Case{"MountLeft",
             "gh200_healthy",
             {"jupiter", "residual_mount"},
             WARN,
             "fs.residual",
             "fuse.squashfuse_ll is still mounted at /tmp/image"},
        Case{"ProcessLeft",
             "gh200_healthy",
             {"jupiter", "leftover"},
             WARN,
             "proc.leftover",
             "1 other process of this user: process 4712 (python3) of user 4242"},
        Case{"TwoNccls", "gh200_healthy", {"jupiter", "two_nccls"}, FAIL, "lib.twice", "libnccl is loaded 2 times"},
        Case{"CpusOffline",
             "gh200_healthy",
             {"jupiter", "cpus_offline"},
             FAIL,
             "cpu.online",
             "216 of 288 CPUs are online",
             true},
        Case{"SlowClock", "gh200_healthy", {"jupiter", "slow_clock"}, WARN, "clock.source", "hpet"}),
    [](const auto& one) { return std::string(one.param.name); });

TEST(MachinesOfOtherSites, ALostGpuIsADefect) {
  const HealthReport report = health_of(Machine("gh200_healthy", {"jupiter", "gpu_lost"}), load_site("jupiter"));
  EXPECT_EQ(report.verdict(), FAIL);
  EXPECT_NAMES(result_of(report.node(0), "gpu.count").reason(), "GPU 2 (0029:01:00.0): GPU is lost");
  EXPECT_EQ(report.drain_command(0).find("scontrol update NodeName=n1 State=DRAIN Reason='ananke: gpu.count: GPU 2"),
            0U);
}

TEST(MachinesOfOtherSites, PlaceholderNumaNodesAreNobodys) {
  const HealthReport report = health_of(Machine("gh200_healthy", {"jupiter"}), load_site("jupiter"));
  EXPECT_EQ(result_of(report.node(0), "numa.layout").reason(), "4 NUMA nodes with CPUs, 4 of GPUs' memory, 28 empty");
  EXPECT_EQ(result_of(report.node(0), "mem.numa_cpu").verdict(), PASS);
}

TEST(MachinesOfOtherSites, Cdmm) {
  const HealthReport report = health_of(Machine("gh200_cdmm", {"jupiter"}), load_site("jupiter"));
  EXPECT_EQ(result_of(report.node(0), "mem.hbm_cache").verdict(), SKIPPED);
  EXPECT_EQ(result_of(report.node(0), "numa.layout").reason(), "4 NUMA nodes with CPUs, 0 of GPUs' memory, 0 empty");
}

// Eight NUMA nodes, SMT, no C2C: what is JUPITER's is in its profile alone.
TEST(MachinesOfOtherSites, X86WithSmt) {
  const TemporaryFolder folder;
  const Site site = load_site(folder
                                  .write("site.textproto",
                                         "name: \"x\" start: SRUN network_interface: \"ib0\" hardware { gpus: 4 }\n"
                                         "health { cpu_numa_nodes: 8 ports: 4 port_gbit: 200 nvlinks: 12\n"
                                         "threshold { check: \"mem.numa_cpu\" fail: \"30 GiB\" } }\n")
                                  .string());
  const HealthReport report = health_of(Machine("epyc_nps4", {"x86"}), site);
  EXPECT_EQ(report.verdict(), PASS) << report_text(report);
  EXPECT_EQ(result_of(report.node(0), "mem.numa_cpu").verdict(), PASS);
  EXPECT_EQ(result_of(report.node(0), "gpu.c2c").verdict(), SKIPPED);
  EXPECT_EQ(result_of(report.node(0), "gpu.nvlink").verdict(), PASS);
}

TEST(MachinesOfOtherSites, WithoutGpusWhereNoneAreExpected) {
  const Machine machine("virtual_machine", {"jupiter"});
  std::filesystem::remove(machine.root() / "nvml.textproto");
  const HealthReport report = health_of(machine, load_site("local"));
  EXPECT_EQ(report.verdict(), PASS) << report_text(report);
  EXPECT_EQ(result_of(report.node(0), "gpu.count").verdict(), SKIPPED);
  const HealthReport expected = health_of(machine, load_site("jupiter"));
  EXPECT_EQ(result_of(expected.node(0), "gpu.count").verdict(), UNKNOWN);
  EXPECT_NAMES(result_of(expected.node(0), "gpu.count").reason(), "the site has 4 GPUs a node");
}

// A GPU that somebody keeps busy may be late, and is no defect; one that nobody uses is.
TEST(MachinesOfOtherSites, ALateCheckOfGpusThatOthersUseIsNoDefect) {
  const CheckSet checks(load_site("jupiter"), {ANANKE_BINARY_DIR "/tests/slow_plugins"});
  const auto late_on = [&](const std::vector<std::string>& parts) {
    const Machine machine("gh200_healthy", parts);
    CheckOptions options = options_for(machine);
    options.patience = 1;
    return result_of(checks.run(options), "gpu.slow");
  };
  const CheckResult idle = late_on({"jupiter"}), used = late_on({"jupiter", "gpu_in_use"});
  EXPECT_EQ(idle.verdict(), FAIL);
  EXPECT_EQ(idle.cause(), DEFECT) << idle.reason();
  EXPECT_EQ(used.verdict(), FAIL);
  EXPECT_EQ(used.cause(), IN_USE);
  EXPECT_NAMES(used.reason(), "; others use GPUs 2 (gpu.use)");
}

TEST(MachinesOfOtherSites, AMisspeltCheckThatIsToBeLeftOutIsTold) {
  Site site = load_site("jupiter");
  site.mutable_health()->add_skip("gpu.cuont");
  site.mutable_health()->add_skip("gpu.clocks");
  const HealthReport report = health_of(Machine("gh200_healthy", {"jupiter"}), site);
  EXPECT_EQ(result_of(report.node(0), "site.gpu.cuont").verdict(), WARN);
  EXPECT_NAMES(result_of(report.node(0), "site.gpu.cuont").reason(), "did you mean 'gpu.count'?");
  EXPECT_EQ(result_of(report.node(0), "gpu.clocks").verdict(), SKIPPED);
}

TEST(MachinesOfOtherSites, NamesOfProcessesCannotSteerATerminal) {
  const Machine machine("gh200_healthy", {"jupiter", "gpu_in_use"});
  std::ofstream(machine.root() / "proc/4711/comm") << "py\033[2Jthon\n";
  const HealthReport report = health_of(machine, load_site("jupiter"));
  EXPECT_NAMES(report_text(report), "process 4711 (py\\x1b[2Jthon)");
  for (const std::string& command : report.drain_command()) EXPECT_EQ(command.find('\033'), std::string::npos);
}

TEST(MachinesOfOtherSites, FilesLeftInSharedMemory) {
  const Machine machine("gh200_healthy", {"jupiter"});
  std::ofstream(machine.root() / "dev/shm/nccl-x") << std::string(10000, 'x');
  const NodeChecksFolder plugin;
  const CheckSet checks(load_site("jupiter"), plugin.folders());
  CheckOptions options = options_for(machine);
  options.user = getuid();
  const NodeHealth node = checks.run(options);
  EXPECT_EQ(result_of(node, "shm.leftover").verdict(), WARN);
  EXPECT_NAMES(result_of(node, "shm.leftover").reason(), "nccl-x");
}

TEST(MachinesOfOtherSites, CountersAreJudgedByWhatTheyGrewSinceTheLastCheck) {
  const Machine machine("gh200_healthy", {"jupiter", "nic_flapped"});
  const NodeChecksFolder plugin;
  const CheckSet checks(load_site("jupiter"), plugin.folders());
  CheckOptions options = options_for(machine);
  const NodeHealth before = checks.run(options);
  EXPECT_EQ(result_of(before, "ib.flap").verdict(), WARN);
  options.earlier = &before;
  EXPECT_EQ(result_of(checks.run(options), "ib.flap").verdict(), PASS) << "it has not grown since";
  std::ofstream(machine.root() / "sys/class/infiniband/mlx5_3/ports/1/counters/link_downed") << "3\n";
  EXPECT_EQ(result_of(checks.run(options), "ib.flap").verdict(), FAIL);
  EXPECT_NAMES(result_of(checks.run(options), "ib.flap").reason(), "grew by 2 since the check of " + before.time());
}

TEST(MachinesOfOtherSites, TheTicketNamesWhatNobodyAccountsFor) {
  const HealthReport report = health_of(Machine("gh200_leak", {"jupiter"}), load_site("jupiter"));
  EXPECT_NAMES(report.node(0).ticket(), "Subject: node n1: memory that is neither free nor accounted for");
  EXPECT_NAMES(report_text(report), "for the site's support:");
  EXPECT_NAMES(report_json(report), "\"verdict\":\"FAIL\"");
}

}  // namespace
}  // namespace ananke
