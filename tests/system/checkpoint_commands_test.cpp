// Checkpoints as a person handles them: a run that goes on on another mesh, listing, verifying, exporting, and a run
// that starts from what was exported.
#include <gtest/gtest.h>

#include "runtime/checkpoint/folder.h"
#include "tests/system/command_process.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

constexpr const char* job_text = R"(
name: "moving"
run_dir: "set by the test"
model { vocab_size: 64 hidden_size: 32 num_hidden_layers: 2 num_attention_heads: 2 num_key_value_heads: 1 head_dim: 16
        num_experts: 6 num_experts_per_tok: 2 moe_intermediate_size: 16 }
training { steps: 4 sequence_length: 32 rows_per_step: 24 }
data { generated { documents: 128 shortest: 8 longest: 64 } }
optimizer { use: "adamw" }
)";

class CheckpointCommands : public ::testing::Test {
 protected:
  struct Ended {
    int code;
    std::string output;
  };
  Ended ananke(const std::vector<std::string>& words) const {
    CommandProcess process(words, folder / "output");
    const int code = process.wait();
    return {code, process.output()};
  }
  Ended train(const std::string& run, const std::vector<std::string>& more) const {
    std::vector<std::string> words{"run", job.string(), "--run-dir", (folder / run).string()};
    words.insert(words.end(), more.begin(), more.end());
    return ananke(words);
  }
  static void expect(const Ended& ended, int code, std::initializer_list<const char*> words) {
    EXPECT_EQ(ended.code, code) << ended.output;
    for (const char* word : words)
      EXPECT_NE(ended.output.find(word), std::string::npos) << word << "\n" << ended.output;
  }

  TemporaryFolder folder;
  std::filesystem::path job = folder.write("job.textproto", job_text);
};

TEST_F(CheckpointCommands, RefuseWrongUse) {
  const std::string none = (folder / "none").string();
  expect(ananke({"checkpoint", "list"}), 2, {"exactly one RUN_DIR"});
  expect(ananke({"checkpoint", "list", none}), 6, {"none is no folder"});
  expect(ananke({"checkpoint", "info", folder.path().string()}), 6, {"there is no checkpoint in"});
  expect(ananke({"checkpoint", "verify", "a", "b"}), 2, {"2 words"});
  expect(ananke({"export", none}), 2, {"--output is missing"});
  expect(ananke({"export", none, "--output", none, "--dtype", "fp16"}), 2, {"'fp16'; there are: bf16, fp32"});
  expect(ananke({"export", none, "--output", none, "--shard-size", "5 G"}), 2, {"--shard-size", "5 G"});
  expect(ananke({"export", none, "--output", none}), 6, {"none is no folder"});
  expect(ananke({"import", none}), 5, {"/none does not exist"});
  expect(train("run", {"--set", "initial_weights=" + none}), 3, {"initial_weights", none.c_str()});
}

TEST_F(CheckpointCommands, FollowARunFromMeshToMeshAndIntoAnother) {
  const std::string run = (folder / "run").string(), out = (folder / "hf").string();
  expect(train("run", {"--ranks", "4"}), 0, {"finished at step 4"});
  expect(train("run", {"--ranks", "3", "--resume", "--set", "training.steps=6"}), 0,
         {"resumed from", "step-00000004", "changed: mesh.shard: 4 before, 3 now", "finished at step 6"});
  expect(train("run", {"--ranks", "2", "--resume", "--set", "training.steps=8", "--set", "mesh.replicate=2"}), 0,
         {"changed: mesh.replicate: 1 before, 2 now", "finished at step 8"});
  expect(ananke({"checkpoint", "list", run}), 0, {"8 ", "2 x 1  complete", "6 ", "1 x 3  complete"});
  expect(ananke({"checkpoint", "info", run}), 0,
         {"step 8, 1 files", "6 experts of width 16, top 2", "replicate 2 x shard 1", "exp_avg_sq",
          "model.layers.1.mlp.experts.5.down_proj.weight", "[32, 16]"});
  expect(ananke({"checkpoint", "verify", run}), 0, {"step-00000008: good: 1 files", "step-00000006: good: 3 files"});

  expect(ananke({"export", run, "--output", out, "--dtype", "fp32", "--shard-size", "20kB"}), 0, {"from step 8"});
  expect(ananke({"export", run, "--output", out}), 3, {"exists already"});
  expect(ananke({"import", out, "--print-model"}), 0, {"model {", "num_experts: 6", "moe_intermediate_size: 16"});
  folder.write("hf/tokenizer.json", "{}");
  expect(train("next", {"--ranks", "2", "--set", "initial_weights=" + out, "--set", "training.steps=1"}), 0,
         {"weights from /", "finished at step 1"});
  expect(ananke({"export", (folder / "next").string(), "--output", out + "3"}), 0, {"tokenizer.json from /"});
  EXPECT_EQ(read_text(folder / "hf3/tokenizer.json"), "{}");
  expect(train("other", {"--set", "initial_weights=" + out, "--set", "model.num_experts=12"}), 3,
         {"num_experts: 6 in the folder, 12 in the job"});

  // A bit of the newest checkpoint flips: it is found, and the older one is used.
  const auto file = checkpoints_folder(run) / step_folder_name(8) / shard_file_name(0);
  std::string bytes = text_of(file);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
  expect(ananke({"checkpoint", "verify", run}), 6,
         {"step-00000008: DAMAGED", "rank-0000.h5 is damaged: its hash is", "step-00000006: good"});
  expect(ananke({"export", run, "--output", out + "2"}), 0, {"checkpoint passed over", "from step 6"});
}

}  // namespace
}  // namespace ananke
