// `ananke submit` and `ananke status` with a real Slurm cluster: scripts, signals, requeues, a node that is lost.
#include "launcher/slurm/restarts.h"
#include "runtime/checkpoint/folder.h"
#include "tests/system/slurm_cluster.h"

namespace ananke {
namespace {

class SlurmSubmit : public SlurmTest {
 protected:
  CommandOutput submit_with(std::vector<std::string> more, const std::string& site = "site.textproto") {
    std::vector<std::string> words{ananke,
                                   "submit",
                                   (folder / "job.textproto").string(),
                                   "--site",
                                   site == "local" ? site : (folder / site).string(),
                                   "--run-dir",
                                   (folder / "run").string()};
    words.insert(words.end(), more.begin(), more.end());
    CommandOutput said = run_command(words, milliseconds(60'000));
    const auto at = said.output.find("submitted job ");
    if (at != std::string::npos) {
      job = said.output.substr(at + 14, said.output.find(';', at) - at - 14);
      jobs.push_back(job);
    }
    return said;
  }
  std::string output() const { return text_of(folder / "run" / "logs" / ("slurm-" + job + ".out")); }
  bool job_says(const std::string& text) const {
    for (int i = 0; i < 900; ++i) {
      if (output().find(text) != std::string::npos) return true;
      if (i % 20 == 19 && field(job, "JobState") == "FAILED") return false;
      std::this_thread::sleep_for(milliseconds(100));
    }
    return false;
  }
  static std::size_t count(const std::string& text, const std::string& part) {
    std::size_t found = 0;
    for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
    return found;
  }

  std::string job;
};

TEST_F(SlurmSubmit, RefusesOnTheSpotWhatCannotBe) {
  EXPECT_EQ(submit_with({"--nodes", "2"}, "local").code, 3);
  EXPECT_NE(submit_with({"--nodes", "3"}).errors.find("4 ranks do not spread evenly over 3 nodes"), std::string::npos);
  EXPECT_NE(submit_with({"--nodes", "2", "--set", "model.hiden_size=8"}).errors.find("hidden_size"), std::string::npos);
  EXPECT_NE(submit_with({"--nodes", "2", "--time", "3min"}).errors.find("2 min 00 s before the end of 3 min 00 s"),
            std::string::npos)
      << submit_with({"--nodes", "2", "--time", "3min"}).errors;
  write("partition.textproto", "name: \"c\" start: SRUN slurm { batch { option: \"--partition=nowhere\" } }");
  const CommandOutput refused = submit_with({"--nodes", "2"}, "partition.textproto");
  EXPECT_EQ(refused.code, static_cast<int>(ErrorKind::resource));
  EXPECT_NE(refused.errors.find("invalid partition specified: nowhere"), std::string::npos) << refused.errors;
  EXPECT_TRUE(jobs.empty());
}

// What is left of a chain when all steps are done has nothing to do, and says so.
TEST_F(SlurmSubmit, AChainGoesOnOneAfterTheOther) {
  const CommandOutput said = submit_with({"--nodes", "2", "--chain", "2", "--set", "training.steps=6"});
  ASSERT_EQ(said.code, 0) << said.errors;
  const std::string first = job, second = std::to_string(std::stoi(job) + 1);
  jobs.push_back(second);
  EXPECT_NE(said.output.find("submitted job " + second), std::string::npos) << said.output;
  EXPECT_EQ(wait_for_end(first), "COMPLETED");
  EXPECT_EQ(wait_for_end(second), "COMPLETED");
  job = second;
  EXPECT_NE(output().find("finished at step 6"), std::string::npos) << output();
  EXPECT_EQ(losses("run").size(), 6u) << "no step was done twice";
}

TEST_F(SlurmSubmit, ADryRunPrintsTheScriptAndMakesNothing) {
  const CommandOutput said = submit_with({"--nodes", "2", "--dry-run", "--time", "90min", "--set", "training.steps=7"});
  EXPECT_EQ(said.code, 0) << said.errors;
  for (const char* line : {"#SBATCH --nodes=2\n", "#SBATCH --ntasks-per-node=2\n", "#SBATCH --time=01:30:00\n",
                           "#SBATCH --signal=B:TERM@120\n", "#SBATCH --requeue\n", "/bin/ananke run ", " --requeue\n",
                           " --set training.steps=7 "}) {
    EXPECT_NE(said.output.find(line), std::string::npos) << line << said.output;
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}

TEST_F(SlurmSubmit, AJobRunsToItsEndAndStatusTellsOfIt) {
  EXPECT_EQ(submit_with({"--nodes", "2", "--set", "training.steps=5"}).code, 0);
  EXPECT_EQ(wait_for_end(job), "COMPLETED") << output();
  for (const std::string& what : {job, (folder / "run").string()}) {
    const CommandOutput status = run_command({ananke, "status", what}, milliseconds(20'000));
    EXPECT_EQ(status.code, 0) << status.errors;
    for (const std::string& part : {job + " 'cluster': COMPLETED on node[0-1]", std::string("5/5, loss "),
                                    std::string("checkpoint   step 5, complete"), std::string("restart 0, exit code 0"),
                                    std::string("held by      nobody")}) {
      EXPECT_NE(status.output.find(part), std::string::npos) << part << "\n" << status.output;
    }
  }
  EXPECT_EQ(run_command({ananke, "status", "999999"}, milliseconds(20'000)).code, static_cast<int>(ErrorKind::data));
  EXPECT_EQ(run_command({ananke, "status", folder.string()}, milliseconds(20'000)).code,
            static_cast<int>(ErrorKind::data));
}

// As at the end of its time, with a second signal right behind the first.
TEST_F(SlurmSubmit, ASignalLeadsToACheckpointOneRequeueAndTheSameLosses) {
  const std::vector<std::string> steps{"--set", "training.steps=150"};
  std::vector<std::string> words{"--nodes", "2"};
  words.insert(words.end(), steps.begin(), steps.end());
  EXPECT_EQ(submit_with(words).code, 0);
  ASSERT_TRUE(job_says("step   2/150")) << output();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(run_command({"scancel", "--signal=TERM", "--batch", job}, milliseconds(10'000)).code, 0);
  }
  ASSERT_TRUE(job_says("requeueing job " + job)) << output();
  EXPECT_EQ(wait_for_end(job), "COMPLETED") << output();
  EXPECT_EQ(field(job, "Restarts"), "1");
  EXPECT_EQ(count(output(), "requeueing job"), 1u) << output();
  EXPECT_EQ(read_starts(folder / "run").size(), 2u);
  CommandProcess straight({"run", (folder / "job.textproto").string(), "--run-dir", (folder / "straight").string(),
                           "--set", "training.steps=150"},
                          folder / "straight.out");
  EXPECT_EQ(straight.wait(), 0) << straight.output();
  EXPECT_EQ(losses("run").size(), 150u);
  EXPECT_EQ(losses("run"), losses("straight"));
}

TEST_F(SlurmSubmit, AFailureWithoutANewCheckpointIsNotRequeued) {
  EXPECT_EQ(submit_with({"--nodes", "2"}).code, 0);
  ASSERT_TRUE(job_says(" 2/100000")) << output();
  const Place victim = place_of(3);
  EXPECT_EQ(on_node(victim.node, {"kill", "-KILL", victim.process}).code, 0);
  EXPECT_EQ(wait_for_end(job), "FAILED");
  EXPECT_EQ(field(job, "ExitCode"), fmt::format("{}:0", static_cast<int>(ErrorKind::worker_failed)));
  EXPECT_NE(output().find("is not requeued: there is no new checkpoint since its start at step 0"), std::string::npos)
      << output();
}

TEST_F(SlurmSubmit, ACancelledJobStaysCancelled) {
  EXPECT_EQ(submit_with({"--nodes", "2"}).code, 0);
  ASSERT_TRUE(job_says(" 2/100000")) << output();
  EXPECT_EQ(run_command({"scancel", job}, milliseconds(10'000)).code, 0);
  EXPECT_EQ(wait_for_end(job), "CANCELLED") << output();
  std::this_thread::sleep_for(std::chrono::seconds(2));
  EXPECT_EQ(field(job, "JobState"), "CANCELLED");
  EXPECT_EQ(field(job, "Restarts"), "0");
}

TEST_F(SlurmSubmit, ALostNodeIsFoundWithinAMinuteAndTheJobFinishesOnOthers) {
  const std::string steps = "training.steps=600", saves = "checkpoint.every_steps=20";
  EXPECT_EQ(submit_with({"--nodes", "2", "--set", steps, "--set", saves}).code, 0);
  ASSERT_TRUE(job_says("checkpoint at step 20")) << output();
  const std::string lost = place_of(3).node;
  ASSERT_NE(lost, "");
  const auto begin = std::chrono::steady_clock::now();
  cut(lost);
  EXPECT_TRUE(job_says("requeueing job " + job)) << output();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
  EXPECT_TRUE(job_says("restart 1, --mpi")) << output();
  EXPECT_EQ(wait_for_end(job), "COMPLETED") << output();
  EXPECT_EQ(field(job, "Restarts"), "1");
  EXPECT_NE(place_of(3).node, lost);
  heal(lost);
  CommandProcess straight(
      {"run", (folder / "job.textproto").string(), "--run-dir", (folder / "straight").string(), "--set", steps},
      folder / "straight.out");
  EXPECT_EQ(straight.wait(), 0) << straight.output();
  EXPECT_EQ(losses("run").size(), 600u);
  EXPECT_EQ(losses("run"), losses("straight"));
}

// Of five nodes one is drained: the job takes the other four, by PMIx and without it, and computes the same.
TEST_F(SlurmSubmit, SixteenRanksOnFourNodesDoWithoutADrainedOne) {
  const auto set_state = [](const char* state) {
    return run_command({"scontrol", "update", "nodename=node1", std::string("state=") + state, "reason=test"},
                       milliseconds(10'000))
        .code;
  };
  ASSERT_EQ(set_state("drain"), 0);
  const std::vector<std::string> words{"--nodes", "4",
                                       "--set",   "mesh.shard=16",
                                       "--set",   "training.rows_per_step=16",
                                       "--set",   "training.rows_per_microbatch=1",
                                       "--set",   "training.steps=5"};
  std::vector<std::vector<std::string>> found;
  for (const char* mpi : {"pmix", "none"}) {
    write("site.textproto",
          fmt::format("name: \"cluster\" start: SRUN network_interface: \"eth0\" slurm {{ mpi: \"{}\" }}\n", mpi));
    const CommandOutput said = submit_with(words);
    EXPECT_EQ(said.code, 0) << said.errors;
    EXPECT_EQ(wait_for_end(job), "COMPLETED") << output();
    EXPECT_TRUE(job_says(fmt::format("--mpi={}", mpi))) << output();
    EXPECT_TRUE(job_says("16 ranks, 4 on each of 4 nodes")) << output();
    const std::vector<std::string> nodes{"node0", "node2", "node3", "node4"};
    for (int rank = 0; rank < 16; ++rank) {
      EXPECT_EQ(place_of(rank).node, nodes[static_cast<std::size_t>(rank / 4)]) << place_of(rank).text;
    }
    found.push_back(losses("run"));
    std::filesystem::rename(folder / "run", folder / mpi);
  }
  EXPECT_EQ(set_state("resume"), 0);
  EXPECT_EQ(found[0].size(), 5u);
  EXPECT_EQ(found[0], found[1]);
}

}  // namespace
}  // namespace ananke
