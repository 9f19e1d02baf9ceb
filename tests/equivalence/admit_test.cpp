// Admission among ranks: every one comes to the same end before any allocates.
#include "runtime/engine/admit.h"

#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "ananke/site.pb.h"
#include "runtime/engine/alone.h"
#include "runtime/engine/resident_activations.h"
#include "runtime/engine/trainer.h"
#include "tests/equivalence/rank_runs.h"
#include "tests/refusal.h"
#include "tests/runtime/memory/node_trees.h"

namespace ananke {
namespace {

constexpr std::uint64_t gib = std::uint64_t{1} << 30;
constexpr int layers = 8;

// Plans 2 GiB of the host for each layer that it offloads, as if a layer's inputs were so large.
class PlansMuch final : public ResidentActivations {
 public:
  PlansMuch(const Job& job, double configured, bool rounding)
      : job_(job), configured_(configured), rounding_(rounding) {}
  bool rounds() const override { return rounding_; }
  double offload_fraction() const override {
    return job_.resolved().has_offload_fraction() ? job_.resolved().offload_fraction() : configured_;
  }
  std::vector<PlanLine> plan(std::int64_t inputs, std::size_t bytes) const override {
    std::vector<PlanLine> lines = ResidentActivations::plan(inputs, bytes);
    lines.push_back(
        {"block inputs (host)", Place::host, static_cast<std::uint64_t>(offload_fraction() * layers + 0.5) * 2 * gib});
    return lines;
  }

 private:
  const Job& job_;
  const double configured_;
  const bool rounding_;
};

class Console : public Alone {
 public:
  using Alone::Alone;
  void console(const std::string& line) override { lines += line + "\n"; }
  std::string lines;
};

// Two ranks on a recorded node of 23.5 GiB.
class AdmitTest : public ::testing::Test {
 protected:
  AdmitTest() : tree_("virtual_machine") { site_.mutable_memory()->set_root(tree_.root().string()); }

  // The console's lines of rank 0; throws what all ranks threw.
  std::string admit(JobMemory::Admission policy, double configured) {
    const TemporaryFolder folder;
    const Job job = small_job(folder.path() / "run",
                              "model { num_hidden_layers: 8 } mesh { shard: 2 } training { rows_per_microbatch: 4 }");
    std::mutex mutex;
    std::set<std::string> errors;
    std::string said;
    run_makers(job, {1, 2}, [&](const RoleContext& given, const auto& make, Rendezvous& rendezvous) {
      Job mine = job;
      mine.mutable_memory()->set_admission(policy);
      RoleContext context{mine, site_, given.mesh, given.rank, 2};
      context.node = "n1";
      context.local_rank = given.rank;
      Console console(given.rank, 2);
      std::string error;
      try {
        const auto trainer =
            Admitter(mine, context, site_, rendezvous, console, [&] {
              EngineRoles roles = make();
              roles.activations = std::make_unique<PlansMuch>(mine, configured, rounds_);
              return std::make_unique<Trainer>(std::move(roles), context, rendezvous, console, console);
            }).admit();
        EXPECT_NE(trainer, nullptr);
      } catch (const Error& failure) {
        EXPECT_EQ(failure.kind(), ErrorKind::resource);
        error = failure.what();
      }
      std::lock_guard lock(mutex);
      errors.insert(error);
      if (given.rank == 0) {
        said = console.lines;
        fraction_ = mine.resolved().has_offload_fraction() ? mine.resolved().offload_fraction() : -1;
      }
    });
    EXPECT_EQ(errors.size(), 1U) << "ranks disagree";
    error_ = *errors.begin();
    return said;
  }

  const NodeTree tree_;
  Site site_;
  std::string error_;
  double fraction_ = -1;
  bool rounds_ = false;
};

TEST_F(AdmitTest, WithSparesWhatStillDoesNotFitIsRefused) {
  admit(JobMemory::USE_SPARES, 0.5);
  EXPECT_EQ(error_, "");
  admit(JobMemory::USE_SPARES, 1);
  EXPECT_NE(error_.find("and no spare node could take the place of one that is too small"), std::string::npos)
      << error_;
}

TEST_F(AdmitTest, WhatFitsGoesOnWithoutAWord) {
  EXPECT_EQ(admit(JobMemory::REFUSE, 0.5), "");  // 2 x 8 GiB
  EXPECT_EQ(error_, "");
  EXPECT_EQ(fraction_, -1);
}

TEST_F(AdmitTest, WhatDoesNotIsRefusedOnAllRanks) {
  admit(JobMemory::REFUSE, 1);  // 2 x 16 GiB
  for (const char* part : {"the job does not fit into the memory of its nodes",
                           "node n1, NUMA node 0: ranks 0, 1 need 32.", "23.5 GiB in all", "--admission off"}) {
    EXPECT_NE(error_.find(part), std::string::npos) << part << " is not in " << error_;
  }
}

TEST_F(AdmitTest, ASiteStatesWhatAMachineGrowsTo) {
  site_.mutable_memory()->set_node_bytes("64 GiB");
  EXPECT_EQ(admit(JobMemory::REFUSE, 1), "");
  EXPECT_EQ(error_, "");
  site_.mutable_memory()->set_node_bytes("8 GiB");
  const std::string said = admit(JobMemory::REFUSE, 0.5);
  EXPECT_EQ(error_, "");
  EXPECT_NE(said.find("warning: node n1: the site's memory.node_bytes, 8.00 GiB, is less than the 23.5 GiB"),
            std::string::npos)
      << said;
}

TEST_F(AdmitTest, WhatTheSiteKeepsBackIsNamedWhereItIsTheCause) {
  site_.mutable_memory()->set_reserve("10 GiB");
  admit(JobMemory::REFUSE, 0.5);
  EXPECT_NE(
      error_.find("without the 10.0 GiB that the site's memory.reserve keeps back on every NUMA node it would fit"),
      std::string::npos)
      << error_;
  EXPECT_EQ(error_.find("that is not what is missing"), std::string::npos) << error_;
  admit(JobMemory::REFUSE, 1);
  EXPECT_EQ(error_.find("memory.reserve keeps back"), std::string::npos) << error_;
}

TEST_F(AdmitTest, AMachineThatShowsNoMemoryIsNotCalledTooSmall) {
  site_.mutable_memory()->set_root("/no/such/root");
  admit(JobMemory::REFUSE, 0.5);
  EXPECT_EQ(error_.find("does not fit"), std::string::npos) << error_;
  for (const char* part : {"nobody can say whether the job fits", "/no/such/root/proc/meminfo cannot be read",
                           "below /no/such/root (the site's memory.root)"}) {
    EXPECT_NE(error_.find(part), std::string::npos) << part << " is not in " << error_;
  }
}

TEST_F(AdmitTest, OffWarnsAndGoesOn) {
  const std::string said = admit(JobMemory::OFF, 1);
  EXPECT_EQ(error_, "");
  EXPECT_NE(said.find("warning: memory.admission is OFF"), std::string::npos) << said;
  EXPECT_NE(said.find("NUMA node 0: ranks 0, 1 need"), std::string::npos) << said;
}

TEST_F(AdmitTest, AsMuchIsOffloadedAsFits) {
  const std::string said = admit(JobMemory::REDUCE_OFFLOAD, 1);  // 22 GiB for two ranks: 5 layers of 8 each
  EXPECT_EQ(error_, "");
  EXPECT_EQ(fraction_, 5.0 / 8);
  EXPECT_NE(said.find("0.625 instead of 1 of the layers' inputs are kept on the host"), std::string::npos) << said;
  EXPECT_EQ(said.find("rounded"), std::string::npos) << said;
  rounds_ = true;
  EXPECT_NE(admit(JobMemory::REDUCE_OFFLOAD, 1).find("are not the bits of a run with another fraction"),
            std::string::npos);
}

TEST_F(AdmitTest, NothingToOffloadLessIsSaid) {
  site_.mutable_memory()->set_reserve("22 GiB");
  admit(JobMemory::REDUCE_OFFLOAD, 0);
  EXPECT_NE(error_.find("but no activations are kept on the host"), std::string::npos) << error_;
  admit(JobMemory::REDUCE_OFFLOAD, 1);
  EXPECT_NE(error_.find("even with no activations kept on the host"), std::string::npos) << error_;
}

}  // namespace
}  // namespace ananke
