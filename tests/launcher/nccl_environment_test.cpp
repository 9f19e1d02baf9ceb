#include "launcher/nccl_environment.h"

#include <gtest/gtest.h>

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "launcher/job_environment.h"
#include "launcher/nccl_variables.h"
#include "runtime/config/site.h"
#include "tests/refusal.h"

namespace ananke {
namespace {

Site cluster() {
  Site site;
  site.set_name("cluster");
  site.set_start(Site::SRUN);
  site.set_network_interface("ib0");
  site.mutable_deadlines()->set_step("10min");
  site.mutable_machine()->add_infiniband("mlx5_0");
  return site;
}

constexpr EnvironmentUse many{.ranks = 384, .several_nodes = true};

// "refused: text" or "warning: text" of all findings, joined.
std::string findings(const Environment& environment, const Site& site = cluster(), const EnvironmentUse& use = many) {
  std::string text;
  for (const EnvironmentFinding& finding : lint_environment(environment, site, use)) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "\n", finding.refuse ? "refused" : "warning", finding.text);
  }
  return text;
}

struct Case {
  const char* name;
  const char* value;
  const char* verdict;  // the beginning; empty: nothing is found
};

TEST(NcclEnvironment, KnowsWhatFieldsHold) {
  for (const auto& [name, value, verdict] : std::vector<Case>{
           {"NCCL_IB_TIMEOUT", "100",
            "refused: NCCL_IB_TIMEOUT='100': it is the exponent t of 4.096 us x 2^t, a field "},
           {"NCCL_IB_TIMEOUT", "120", "refused"},
           {"NCCL_IB_TIMEOUT", "32", "refused"},
           {"NCCL_IB_TIMEOUT", "0x20", "refused"},
           {"NCCL_IB_TIMEOUT", "-1", "refused"},
           {"NCCL_IB_TIMEOUT", "18", ""},
           {"NCCL_IB_TIMEOUT", "0x16", ""},
           {"NCCL_IB_TIMEOUT", "fast", "warning: NCCL_IB_TIMEOUT='fast': that is no number, so NCCL passes it over"},
           {"NCCL_IB_TIMEOUT", "", ""},
           {"NCCL_IB_RETRY_CNT", "20", "refused: NCCL_IB_RETRY_CNT='20': it is a field of 3 bits"},
           {"NCCL_IB_RETRY_CNT", "8", "refused"},
           {"NCCL_IB_RETRY_CNT", "7", ""},
           {"NCCL_IB_SL", "16", "refused"},
           {"NCCL_IB_SL", "15", ""},
           {"NCCL_IB_TC", "256", "refused"},
           {"NCCL_IB_TC", "106", ""},
           {"NCCL_IB_GID_INDEX", "3", ""},
           {"NCCL_IB_GID_INDEX", "-1", ""},
           {"NCCL_IB_GID_INDEX", "-2", "refused"},
           {"NCCL_NVLS_ENABLE", "3", "refused"},
           {"NCCL_CROSS_NIC", "2", ""},
           {"NCCL_IB_QPS_PER_CONNECTION", "129", "refused"},
           {"NCCL_NTHREADS", "100", "refused: NCCL_NTHREADS='100': a block of NCCL's has 64, 128, 256 or 512 threads"},
           {"NCCL_NTHREADS", "256", ""},
           {"NCCL_MIN_CTAS", "-1", "refused: NCCL_MIN_CTAS='-1': NCCL has at most 64 channels"},
           {"NCCL_MAX_CTAS", "0", "refused"},
           {"NCCL_MAX_CTAS", "16", ""},
           {"NCCL_COMM_ID", "10.0.0.1:4000",
            "refused: NCCL_COMM_ID='10.0.0.1:4000': all communicators would be set up"},
           {"NCCL_IB_QPS_PER_CONNECTION", "99999999999999999999", "warning"}}) {
    const std::string found = findings({{name, value}});
    EXPECT_TRUE(*verdict == '\0' ? found.empty() : found.starts_with(verdict)) << name << "=" << value << "\n" << found;
  }
}

TEST(NcclEnvironment, EveryNumberRuleHoldsAtItsEnds) {
  for (const NumberRule& rule : number_rules()) {
    const auto refused = [&](long value) {
      for (const auto& finding : lint_environment({{rule.name, std::to_string(value)}}, Site(), {})) {
        if (finding.refuse && finding.text.find(rule.why) != std::string::npos) return true;
      }
      return false;
    };
    EXPECT_FALSE(refused(rule.least)) << rule.name;
    EXPECT_FALSE(refused(rule.most)) << rule.name;
    EXPECT_TRUE(refused(rule.least - 1)) << rule.name;
    EXPECT_TRUE(refused(rule.most + 1)) << rule.name;
  }
}

TEST(NcclEnvironment, KnowsWords) {
  for (const auto& [name, value, verdict] :
       std::vector<Case>{{"NCCL_PROTO", "Simple", ""},
                         {"NCCL_PROTO", "^ll128", ""},
                         {"NCCL_PROTO", "LL,Simple", ""},
                         {"NCCL_PROTO", "LL129",
                          "warning: NCCL_PROTO='LL129': NCCL does not know 'LL129'; it knows LL, LL128, Simple"},
                         {"NCCL_PROTO", "allreduce:ll;broadcast:simple", ""},
                         {"NCCL_ALGO", "Ring,Tre", "warning: NCCL_ALGO='Ring,Tre': NCCL does not know 'Tre'"},
                         {"NCCL_NET_GDR_LEVEL", "SYS", ""},
                         {"NCCL_NET_GDR_LEVEL", "5", ""},
                         {"NCCL_NET_GDR_LEVEL", "FAR", "warning"},
                         {"NCCL_SOCKET_FAMILY", "AF_INET", ""},
                         {"NCCL_SOCKET_FAMILY", "IPv4", "warning"},
                         {"NCCL_DEBUG", "WARN", ""},
                         {"NCCL_DEBUG", "DEBUG", "warning"}}) {
    const std::string found = findings({{name, value}});
    EXPECT_TRUE(*verdict == '\0' ? found.empty() : found.starts_with(verdict)) << name << "=" << value << "\n" << found;
  }
}

TEST(NcclEnvironment, NamesVariablesThatNcclDoesNotRead) {
  EXPECT_NAMES(findings({{"NCCL_IB_TIMEOUTS", "20"}}),
               "NCCL has no such variable and passes it over; is NCCL_IB_TIMEOUT");
  EXPECT_NAMES(findings({{"NCCL_SOCKET_IFNAMES", "ib0"}}), "is NCCL_SOCKET_IFNAME meant?");
  for (const char* other : {"NCCL_ROOT", "NCCL_HOME", "NCCL_VERSION", "NCCLX", "EBROOTNCCL"}) {
    EXPECT_EQ(findings({{other, "/usr"}}), "") << other;
  }
  EXPECT_NAMES(findings({{"NCCL_SOMETHING_QUITE_ELSE", "1"}}),
               "warning: NCCL_SOMETHING_QUITE_ELSE='1': NCCL up to 2.28 has no such variable");
  EXPECT_NAMES(findings({{"NCCL_IB_HCA", " mlx5_0"}}), "takes the blanks");
}

TEST(NcclEnvironment, FindsWhatUndoesEachOther) {
  EXPECT_NAMES(findings({{"NCCL_ALGO", "NVLS"}, {"NCCL_NVLS_ENABLE", "0"}}),
               "refused: NCCL_ALGO='NVLS': NCCL_NVLS_ENABLE=0");
  EXPECT_EQ(findings({{"NCCL_ALGO", "NVLS,Ring"}, {"NCCL_NVLS_ENABLE", "0"}}), "");
  EXPECT_NAMES(findings({{"NCCL_NET_GDR_LEVEL", "LOC"}, {"NCCL_NET_GDR_READ", "1"}}),
               "no GPU's memory is read by a NIC");
  EXPECT_EQ(findings({{"NCCL_NET_GDR_LEVEL", "2"}, {"NCCL_NET_GDR_READ", "1"}}), "");
  EXPECT_NAMES(findings({{"NCCL_SOCKET_NTHREADS", "16"}, {"NCCL_NSOCKS_PERTHREAD", "5"}}), "these are 5 sockets for each of them");
  EXPECT_EQ(findings({{"NCCL_SOCKET_NTHREADS", "16"}, {"NCCL_NSOCKS_PERTHREAD", "4"}}), "");
  EXPECT_NAMES(findings({{"NCCL_MIN_NCHANNELS", "16"}, {"NCCL_MAX_NCHANNELS", "8"}}),
               "more than NCCL_MAX_NCHANNELS='8'");
  EXPECT_NAMES(findings({{"NCCL_IB_DISABLE", "1"}, {"NCCL_IB_HCA", "mlx5_0"}}), "means that none is used");
  EXPECT_NAMES(findings({{"NCCL_NET", "AWS Libfabric"}, {"NCCL_NET_PLUGIN", "none"}}),
               "NCCL_NET_PLUGIN=none forbids it");
}

TEST(NcclEnvironment, FindsInterfacesThatReachNobody) {
  for (const char* local : {"lo", "=lo", "docker0", "lo,docker0,virbr0"}) {
    EXPECT_NAMES(findings({{"NCCL_SOCKET_IFNAME", local}}), "no other node can be reached by it");
    EXPECT_EQ(findings({{"NCCL_SOCKET_IFNAME", local}}, cluster(), {.ranks = 4}), "") << local;
  }
  for (const char* good : {"ib0", "=ib0", "ib", "^lo,docker", "eth0,ib0"}) {
    EXPECT_EQ(findings({{"NCCL_SOCKET_IFNAME", good}}), "") << good;
  }
  EXPECT_NAMES(findings({{"NCCL_SOCKET_IFNAME", "eth0"}}),
               "warning: NCCL_SOCKET_IFNAME='eth0': site 'cluster' has its");
}

// 4.096 us x 2^20 x 7 are NCCL's 30 s; 2^31 are hours.
TEST(NcclEnvironment, ComparesTheWaitForADeadLinkWithTheDeadlines) {
  EXPECT_EQ(findings({{"NCCL_IB_TIMEOUT", "20"}, {"NCCL_IB_RETRY_CNT", "7"}}), "");
  EXPECT_EQ(findings({{"NCCL_IB_TIMEOUT", "22"}}), "") << "two minutes";
  EXPECT_NAMES(findings({{"NCCL_IB_TIMEOUT", "31"}}),
               "given up after 17 h 06 min (7 times 4.096 us x 2^31), later than a");
  EXPECT_NAMES(findings({{"NCCL_IB_TIMEOUT", "0"}}), "0 means without end");
}

TEST(NcclEnvironment, KnowsTheHabitsOfOtherFrameworks) {
  EXPECT_NAMES(findings({{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}}), "refused: CUDA_DEVICE_MAX_CONNECTIONS='1'");
  EXPECT_EQ(findings({{"CUDA_DEVICE_MAX_CONNECTIONS", "8"}}), "");
  EXPECT_NAMES(findings({{"NCCL_COMM_BLOCKING", "1"}}), "refused");
  EXPECT_NAMES(findings({{"NCCL_LAUNCH_ORDER_IMPLICIT", "0"}}), "warning");
  EXPECT_NAMES(findings({{"NCCL_P2P_DISABLE", "1"}}), "not by NVLink");
  EXPECT_NAMES(findings({{"NCCL_IB_DISABLE", "1"}}), "nodes would talk by TCP");
  EXPECT_NAMES(findings({{"NCCL_NET", "Socket"}}), "nodes would talk by TCP");
  EXPECT_NAMES(findings({{"NCCL_DEBUG", "INFO"}}), "NCCL_DEBUG_FILE=");
  EXPECT_EQ(findings({{"NCCL_DEBUG", "INFO"}}, cluster(), {.ranks = 4}), "");
  EXPECT_EQ(findings({{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_FILE", "/tmp/n.%h"}}), "");
}

TEST(NcclEnvironment, KnowsWhatTheSiteKnows) {
  Site site = cluster();
  KnownBadValue& bad = *site.mutable_environment()->add_known_bad();
  bad.set_name("NCCL_NET_GDR_LEVEL");
  bad.set_value("loc");
  bad.set_why("slow");
  EXPECT_EQ(findings({{"NCCL_NET_GDR_LEVEL", "LOC"}}, site),
            "warning: NCCL_NET_GDR_LEVEL='LOC': at site 'cluster': slow");
  EXPECT_EQ(findings({{"NCCL_NET_GDR_LEVEL", "SYS"}}, site), "");
  bad.set_refuse(true);
  bad.clear_value();
  EXPECT_NAMES(findings({{"NCCL_NET_GDR_LEVEL", "SYS"}}, site), "refused");
  EXPECT_EQ(findings({{"NCCL_NET_GDR_LEVEL", ""}}, site), "");
}

TEST(SiteVariables, AreSetWhereNobodyHas) {
  Site site = cluster();
  SiteVariable& variable = *site.mutable_environment()->add_variable();
  variable.set_name("NCCL_IB_TIMEOUT");
  variable.set_value("22");
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(missing_site_variables({{"A", "1"}}, site), (Pairs{{"NCCL_IB_TIMEOUT", "22"}}));
  EXPECT_EQ(missing_site_variables({{"NCCL_IB_TIMEOUT", ""}}, site), Pairs()) << "set to nothing on purpose";
  EXPECT_EQ(with_site_variables({{"NCCL_IB_TIMEOUT", "5"}}, site), (Environment{{"NCCL_IB_TIMEOUT", "5"}}));
}

Job job_on(const std::string& backend) {
  Job job;
  job.mutable_resolved()->set_ranks(8);
  PluginFile& plugin = *job.mutable_resolved()->add_plugins();
  plugin.set_role("backend");
  plugin.set_name(backend);
  return job;
}

TEST(JobEnvironment, IsRefusedForAJobOnGpusOnly) {
  const Environment bad{{"NCCL_IB_TIMEOUT", "100"}, {"NCCL_IB_RETRY_CNT", "20"}, {"NCCL_DEBUG", "LOUD"}};
  EXPECT_ERROR(check_job_environment(job_on("backend_cuda"), cluster(), bad), ErrorKind::config,
               "2 of the environment's variables would break the job:\n  NCCL_IB_RETRY_CNT='20'",
               "\n  NCCL_IB_TIMEOUT");
  EXPECT_TRUE(check_job_environment(job_on("backend_host"), cluster(), bad).empty());
  const auto warnings = check_job_environment(job_on("backend_cuda"), cluster(), {{"NCCL_DEBUG", "LOUD"}});
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NAMES(warnings[0], "NCCL does not know 'LOUD'");
}

TEST(JobEnvironment, TellsWhatIsNotAsTheSiteWouldHaveIt) {
  const Site site = load_site("jupiter");
  EXPECT_TRUE(check_job_environment(job_on("backend_cuda"), site, {}).empty()) << "the site's own is in order";
  const auto warnings = check_job_environment(job_on("backend_cuda"), site, {{"NCCL_IB_TIMEOUT", "18"}});
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NAMES(warnings[0], "NCCL_IB_TIMEOUT='18' is kept, where site 'jupiter' would set '22'");
}

}  // namespace
}  // namespace ananke
