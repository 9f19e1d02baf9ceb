#include "runtime/bootstrap/identity.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <map>

#include "runtime/base/error.h"

namespace ananke {
namespace {

using Environment = std::map<std::string, std::string>;

const Environment good{{"SLURM_PROCID", "5"},
                       {"SLURM_NTASKS", "7"},
                       {"SLURM_LOCALID", "1"},
                       {"SLURM_NODEID", "1"},
                       {"SLURM_JOB_ID", "77"},
                       {"SLURM_STEP_TASKS_PER_NODE", "4,3"},
                       {"SLURMD_NODENAME", "jpbo-001-02"}};

Identity identify(const Environment& environment) {
  return identify_by_slurm([&](const char* name) {
    auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

std::string error_with(const std::string& name, const std::string& value) {
  Environment changed = good;
  changed[name] = value;
  try {
    identify(changed);
  } catch (const Error& error) {
    return fmt::format("{}: {}", name_of(error.kind()), error.what());
  }
  return "nothing thrown";
}

TEST(SlurmIdentity, QuotesTheVariableThatIsWrong) {
  for (const char* name : {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_RESTART_COUNT"}) {
    for (const char* value : {"unlimited", "-1", "1.5", "99999999999999999999", " 1", "0x1"}) {
      const std::string error = error_with(name, value);
      EXPECT_NE(error.find(fmt::format("config: the environment says {}='{}'", name, value)), std::string::npos)
          << error;
    }
  }
  for (const char* value : {"4", "4,", "four,3", "4(x0),3", "4(x", "4(x2)3"}) {
    EXPECT_NE(error_with("SLURM_STEP_TASKS_PER_NODE", value).find("has no entry for SLURM_NODEID=1"), std::string::npos)
        << value << ": " << error_with("SLURM_STEP_TASKS_PER_NODE", value);
  }
}

TEST(SlurmIdentity, TakesEmptyForUnsetAndRefusesContradictions) {
  EXPECT_NE(error_with("SLURM_LOCALID", "").find("SLURM_LOCALID is not"), std::string::npos);
  EXPECT_EQ(error_with("SLURM_RESTART_COUNT", ""), "nothing thrown");
  EXPECT_NE(error_with("SLURM_NTASKS", "5").find("rank 5 of size 5"), std::string::npos);
  EXPECT_NE(error_with("SLURM_LOCALID", "3").find("local rank 3 of local size 3"), std::string::npos);
}

TEST(SlurmIdentity, ReadsAJobOfUnevenNodes) {
  const Identity identity = identify(good);
  EXPECT_EQ(identity.rank, 5);
  EXPECT_EQ(identity.size, 7);
  EXPECT_EQ(identity.local_rank, 1);
  EXPECT_EQ(identity.local_size, 3);
  EXPECT_EQ(identity.node_index, 1);
  EXPECT_EQ(identity.host, "jpbo-001-02");
  Environment wide = good;
  wide["SLURM_STEP_TASKS_PER_NODE"] = "4(x95),3";
  wide["SLURM_STEP_NUM_TASKS"] = "383";
  wide["SLURM_PROCID"] = "382";
  wide["SLURM_NODEID"] = "95";
  wide["SLURM_LOCALID"] = "2";
  EXPECT_EQ(identify(wide).local_size, 3);
  EXPECT_EQ(identify(wide).size, 383);
}

std::string output_of(const std::string& command) {
  std::string output;
  std::FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> bytes;
  while (std::fgets(bytes.data(), bytes.size(), pipe) != nullptr) output += bytes.data();
  pclose(pipe);
  return output;
}

const std::string probe = ANANKE_BINARY_DIR "/tests/identity_probe";

TEST(PmixIdentity, NamesALibraryThatHangs) {
#ifdef ANANKE_SANITIZED
  GTEST_SKIP() << "the sanitizer's library must come first in a process, so nothing can be preloaded";
#endif
  const std::string said = output_of(
      "PMIX_NAMESPACE=x PMIX_RANK=0 LD_PRELOAD=" ANANKE_BINARY_DIR "/tests/libhanging_pmix.so " + probe + " 200 2>&1");
  EXPECT_NE(said.find("stalled: the PMIx library 9.9.9 that hangs ("), std::string::npos) << said;
  EXPECT_NE(said.find("libhanging_pmix.so) did not answer within 200 ms"), std::string::npos) << said;
}

// Slurm's plugin and a library that does not fit it: its variables say the same.
TEST(PmixIdentity, UnderSlurmAFailureIsNoReasonToGiveUp) {
  const std::string variables =
      "SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_TASKS_PER_NODE='2(x2)' SLURM_JOB_ID=7 "
      "SLURMD_NODENAME=node1 PMIX_SERVER_URI41= PMIX_RANK=3 ";
  const std::string said = output_of(variables + "PMIX_NAMESPACE=slurm.pmix.7.0 " + probe + " 20000 2>&1");
  EXPECT_NE(said.find("rank 3 of 4, local 1 of 2, node 1 node1, job slurm.7"), std::string::npos) << said;
  EXPECT_NE(said.find("by Slurm's environment, since PMIx failed: "), std::string::npos) << said;
  // Not for another's server: a batch script's SLURM_PROCID is not a worker's.
  const std::string other = output_of(variables + "PMIX_NAMESPACE=ananke.1 " + probe + " 20000 2>&1");
  EXPECT_NE(other.find("resource: "), std::string::npos) << other;
}

TEST(PmixIdentity, SaysThatThereIsNoServer) {
  const std::string said = output_of("PMIX_NAMESPACE=x PMIX_RANK=0 PMIX_SERVER_URI41= " + probe + " 20000 2>&1");
  EXPECT_NE(said.find("resource: "), std::string::npos) << said;
}

TEST(Identity, SaysHowWorkersAreStarted) {
  const std::string said = output_of("env -u PMIX_RANK SLURM_PROCID= " + probe + " 1000 2>&1");
  EXPECT_NE(said.find("usage: nothing says which worker this is"), std::string::npos) << said;
}

}  // namespace
}  // namespace ananke
