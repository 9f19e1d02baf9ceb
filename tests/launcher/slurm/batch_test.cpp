// The batch script in the forms of Slurm's versions, and when a job is started again.
#include <gtest/gtest.h>

#include "ananke/site.pb.h"
#include "launcher/slurm/batch_script.h"
#include "launcher/slurm/job_query.h"
#include "launcher/slurm/restarts.h"
#include "runtime/config/site.h"
#include "tests/launcher/slurm/fake_programs.h"
#include "tests/patience.h"
#include "tests/refusal.h"

namespace ananke {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::string script_of(const std::string& site_text, const std::string& version) {
  const TemporaryFolder folder;
  std::ofstream(folder / "site.textproto") << "name: \"s\" start: SRUN " << site_text;
  const Site site = load_site((folder / "site.textproto").string());
  BatchRequest request;
  request.job_name = "my job%j";
  request.nodes = 3;
  request.ranks_per_node = 4;
  request.time_limit = seconds(90'061);
  request.lead_time = seconds(120);
  request.run_dir = "/a run/50%";
  request.command = {"/x/ananke", "run", "a job.textproto"};
  request.requeue = version != "once";
  const std::string text =
      "#SBATCH --{{requeue}} --job-name={{job_name}} --nodes={{nodes}}\n{{gpus}}\n#SBATCH --time={{time_limit}} "
      "--signal=B:TERM@{{lead_seconds}}\n\n#SBATCH --output={{output}}\n{{options}}\n{{shell}}\nexec {{command}}\n";
  return fill_template(text, batch_words(request, site, parse_slurm_version(version)), "file");
}

TEST(BatchScript, NamesAWordThatIsNotThere) {
  const std::map<std::string, std::string> words{{"nodes", "2"}};
  const auto refused = [&](const std::string& text) {
    return refusal(ErrorKind::config, [&] { fill_template(text, words, "train.sbatch"); });
  };
  EXPECT_EQ(refused("one\n{{node}}\n"),
            "train.sbatch:2: there is no '{{node}}'; take one of these, or remove it: nodes");
  EXPECT_EQ(refused("{{nodes"), "train.sbatch:1: '{{' without '}}' on the same line; close it, as in '{{nodes}}'");
  EXPECT_EQ(fill_template("a {{nodes}}{{nodes}} b { }\n\n", words, ""), "a 22 b { }\n\n");
  EXPECT_EQ(fill_template("{{nodes}}", {{"nodes", "{{nodes}}"}}, ""), "{{nodes}}\n")
      << "what is put in is not read again";
}

TEST(BatchScript, IsAsTheSiteAndTheVersionWantIt) {
  EXPECT_EQ(script_of("", ""),
            "#SBATCH --requeue --job-name=my-job-j --nodes=3\n#SBATCH --time=1-01:01:01 --signal=B:TERM@120\n\n"
            "#SBATCH --output=/a run/50%%/logs/slurm-%j.out\nexec /x/ananke run 'a job.textproto'\n");
  const std::string site =
      "slurm { batch { gpus_per_node: 4 option: \"--partition=p\" option: \"--account=a\" shell: \"module load X\" } }";
  const std::string newest = script_of(site, "slurm 26.05.0");
  EXPECT_NE(newest.find("#SBATCH --gpus-per-node=4\n#SBATCH --time"), std::string::npos) << newest;
  EXPECT_EQ(newest.find("gres"), std::string::npos) << "both are refused together";
  EXPECT_NE(newest.find("#SBATCH --partition=p\n#SBATCH --account=a\nmodule load X\nexec "), std::string::npos)
      << newest;
  EXPECT_NE(script_of(site, "slurm 18.08.4").find("#SBATCH --gres=gpu:4\n"), std::string::npos);
  for (const char* version : {"slurm 22.05.8", "slurm 23.02.1"}) {
    EXPECT_NE(script_of("", version).find("|| export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\n"), std::string::npos);
  }
  for (const char* version : {"slurm 21.08.1", "slurm 23.11.0", "slurm 25.05.1"}) {
    EXPECT_EQ(script_of("", version).find("SRUN_CPUS"), std::string::npos) << version;
  }
  EXPECT_EQ(slurm_time(seconds(3'600)), "01:00:00");
  EXPECT_NE(script_of("", "once").find("#SBATCH --no-requeue "), std::string::npos);
}

TEST(BatchScript, IsTheSitesOwnOrTheOneOfTheProduct) {
  const TemporaryFolder folder;
  const std::string site = (folder / "site.textproto").string();
  EXPECT_EQ(find_template(site).string(), ANANKE_SOURCE_DIR "/site/train.sbatch");
  EXPECT_EQ(find_template("local").string(), ANANKE_SOURCE_DIR "/site/train.sbatch");
  std::ofstream(folder / "train.sbatch") << "own\n";
  EXPECT_EQ(find_template(site), folder / "train.sbatch");
}

Start start(const std::string& job, int restart, std::uint64_t step) { return {job, restart, step, "now"}; }

TEST(Restarts, EndWithoutProgressAndAfterEnough) {
  Batch limits;
  EXPECT_EQ(enough_starts({}, limits), "");
  EXPECT_EQ(enough_starts({start("7", 0, 0), start("7", 1, 0)}, limits), "") << "one more try is allowed";
  EXPECT_EQ(enough_starts({start("7", 0, 0), start("7", 1, 0), start("7", 2, 0)}, limits),
            "job 7 was started 2 times at checkpoint 0 and made no further one; 1 such restarts are allowed "
            "(slurm.batch.restarts_without_progress of the site): look at the logs of the runs before");
  EXPECT_EQ(enough_starts({start("7", 0, 0), start("7", 1, 0), start("7", 2, 5), start("7", 3, 5)}, limits), "");
  EXPECT_EQ(enough_starts({start("6", 0, 5), start("6", 1, 5), start("7", 0, 5)}, limits), "") << "another job";
  limits.set_restarts(2);
  EXPECT_EQ(enough_starts({start("7", 0, 0), start("7", 1, 1), start("7", 2, 2)}, limits), "");
  EXPECT_EQ(enough_starts({start("7", 0, 0), start("7", 1, 1), start("7", 2, 2), start("7", 3, 3)}, limits),
            "job 7 was restarted 3 times, and 2 are allowed (slurm.batch.restarts of the site)");
}

TEST(Restarts, FollowOnlyWhatCanGoOn) {
  EXPECT_EQ(why_no_restart(ErrorKind::interrupted, false, 3, 5), "");
  EXPECT_EQ(why_no_restart(ErrorKind::worker_failed, false, 0, 1), "");
  EXPECT_EQ(why_no_restart(ErrorKind::stalled, false, 0, 1), "");
  EXPECT_EQ(why_no_restart(ErrorKind::interrupted, true, 3, 5), "it was stopped from a terminal");
  EXPECT_EQ(why_no_restart(ErrorKind::interrupted, false, 5, 5),
            "there is no new checkpoint since its start at step 5");
  EXPECT_EQ(why_no_restart(ErrorKind{}, false, 3, 5), "it has finished");
  for (ErrorKind kind :
       {ErrorKind::config, ErrorKind::numeric, ErrorKind::data, ErrorKind::plugin, ErrorKind::checkpoint}) {
    EXPECT_EQ(why_no_restart(kind, false, 3, 5), "it would end the same way again");
  }
}

TEST(Restarts, AreReadBackWithoutWhatIsNone) {
  const TemporaryFolder folder;
  EXPECT_TRUE(read_starts(folder.path()).empty());
  record_start(folder.path(), {"77", 0, 0, "2026-11-30T09:05:00Z"});
  std::ofstream(folder / "restarts.jsonl", std::ios::app) << "{\"job\":\"77\",\"resta\nnothing\n{}\n";
  record_start(folder.path(), {"77", 1, 120, "2026-11-30T10:05:00Z"});
  const std::vector<Start> starts = read_starts(folder.path());
  ASSERT_EQ(starts.size(), 2u);
  EXPECT_EQ(starts[1].job, "77");
  EXPECT_EQ(starts[1].restart, 1);
  EXPECT_EQ(starts[1].step, 120u);
  EXPECT_EQ(starts[1].time, "2026-11-30T10:05:00Z");
  EXPECT_ERROR(record_start(folder / "none", {}), ErrorKind::resource, "cannot write", "restarts.jsonl");
}

TEST_F(FakePrograms, ARequeueIsAskedForOnceAndOnlyOfARunningJob) {
  program("scontrol",
          "echo $* >> " + file("calls") + "; echo JobId=7 JobState=$(cat " + file("state") + ") Reason=None");
  std::ofstream(file("state")) << "CANCELLED";
  EXPECT_EQ(requeue("7", test_patience), "Slurm says that it is CANCELLED");
  EXPECT_EQ(text_of("calls"), "show job --oneliner 7\n");
  std::ofstream(file("state")) << "RUNNING";
  EXPECT_EQ(requeue("7", test_patience), "");
  EXPECT_EQ(text_of("calls"), "show job --oneliner 7\nshow job --oneliner 7\nrequeue 7\n");
  program("scontrol", "exec sleep 100");
  EXPECT_NE(requeue("7", milliseconds(50)).find("`scontrol show job --oneliner 7` did not end within 50 ms"),
            std::string::npos);
  setenv("PATH", "/nowhere", 1);
  EXPECT_NE(requeue("7", test_patience).find("cannot execute scontrol: No such file"), std::string::npos);
}

TEST(JobFields, AreTheFirstOfEachName) {
  const SlurmJob job{
      parse_job_fields("JobId=7 JobName=a=b JobState=RUNNING  Reason=None\n   JobState=PENDING NoValue X="), ""};
  EXPECT_EQ(job.state(), "RUNNING");
  EXPECT_EQ(job.field("JobName"), "a=b");
  EXPECT_EQ(job.field("X"), "");
  EXPECT_EQ(job.field("Restarts"), "") << "not said";
  EXPECT_TRUE(parse_job_fields("").empty());
}

}  // namespace
}  // namespace ananke
