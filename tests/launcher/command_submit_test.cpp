// `ananke submit --chain`: jobs that follow each other, given to a sbatch of the test's own.
#include "ananke/site.pb.h"
#include "launcher/command.h"
#include "tests/launcher/slurm/fake_programs.h"
#include "tests/refusal.h"

namespace ananke {
namespace {

int run(const std::vector<std::string>& words) {
  for (const Command& command : all_commands()) {
    if (std::string(command.name) == "submit") return command.run(words);
  }
  ADD_FAILURE() << "there is no command submit";
  return -1;
}

class SubmitChain : public FakePrograms {
 protected:
  SubmitChain() {
    // Numbers its jobs from 101, and keeps what it was given.
    program("sbatch",
            "case $1 in --version) echo slurm 24.05.3; exit;; esac\n"
            "n=$(($(cat " +
                file("count") + " 2> /dev/null || echo 100) + 1)); echo $n > " + file("count") + "\n" + "cp \"$2\" " +
                file("given-") + "$n; echo $n");
    std::ofstream(file("site.textproto")) << "name: \"s\" start: SRUN slurm { ranks_per_node: 2 }";
  }
  std::string submitted(std::vector<std::string> more) const {
    std::vector<std::string> words{ANANKE_SOURCE_DIR "/site/local/jobs/smoke.textproto", "--site",
                                   file("site.textproto"), "--run-dir", file("run")};
    words.insert(words.end(), more.begin(), more.end());
    testing::internal::CaptureStdout();
    std::string failed;
    try {
      EXPECT_EQ(run(words), 0);
    } catch (const Error& error) {
      failed = fmt::format("{}: {}", name_of(error.kind()), error.what());
    }
    return testing::internal::GetCapturedStdout() + failed;
  }
};

TEST_F(SubmitChain, RefusesWhatWouldNotGoOn) {
  for (const char* number : {"0", "-1", "1001"}) {
    EXPECT_NAMES(submitted({"--chain", number}), fmt::format("usage: --chain {} is none of 1 to 1000", number));
  }
  EXPECT_NAMES(submitted({"--chain", "2", "--set", "checkpoint.none=true", "--set", "checkpoint.every_steps=0"}),
               "the job keeps no checkpoints");
  std::ofstream(file("train.sbatch")) << "#!/bin/sh\nexec {{command}}\n";
  EXPECT_NAMES(submitted({"--chain", "2"}), "train.sbatch has no line {{dependency}}");
  EXPECT_EQ(text_of("count"), "");
}

TEST_F(SubmitChain, GivesEachJobTheOneBefore) {
  const std::string said = submitted({"--chain", "3"});
  for (const char* job : {"submitted job 101;", "submitted job 102;", "submitted job 103;"}) EXPECT_NAMES(said, job);
  EXPECT_EQ(text_of("given-101").find("--dependency"), std::string::npos);
  EXPECT_NAMES(text_of("given-102"), "\n#SBATCH --dependency=afterany:101\n");
  EXPECT_NAMES(text_of("given-103"), "\n#SBATCH --dependency=afterany:102\n");
  EXPECT_EQ(text_of("given-101").find(" --resume"), std::string::npos);
  EXPECT_NAMES(text_of("given-103"), " --resume");
  for (const char* job : {"given-101", "given-102", "given-103"}) {
    EXPECT_EQ(text_of(job).find(" --requeue\n"), text_of(job).find("#SBATCH --requeue\n") + 7) << text_of(job);
    EXPECT_NAMES(text_of(job), "--ntasks-per-node=2");
  }
}

TEST_F(SubmitChain, OfOneIsRequeuedInstead) {
  EXPECT_NAMES(submitted({}), "submitted job 101;");
  EXPECT_NAMES(text_of("given-101"), "\nexec ");
  EXPECT_NAMES(text_of("given-101").substr(text_of("given-101").find("\nexec ")), " --requeue\n");
  EXPECT_NAMES(submitted({"--chain", "4", "--dry-run"}), "note: and 3 more, each to go on after the one before");
  EXPECT_EQ(text_of("count"), "101\n");
}

}  // namespace
}  // namespace ananke
