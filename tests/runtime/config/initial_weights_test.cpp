#include <gtest/gtest.h>

#include "ananke/job.pb.h"
#include "runtime/checkpoint/huggingface.h"
#include "runtime/config/validate.h"

namespace ananke {
namespace {

const std::string golden = std::string(ANANKE_SOURCE_DIR) + "/tests/golden/qwen3_moe_a";

Job job_of_golden() {
  Job job;
  job.set_initial_weights(golden);
  *job.mutable_model() = read_huggingface_config(golden);
  return job;
}

std::string only_problem(const Job& job) {
  const Problems problems = check_initial_weights(job);
  EXPECT_EQ(problems.size(), 1u);
  if (problems.empty()) return "";
  EXPECT_EQ(problems[0].path, "initial_weights");
  return problems[0].message;
}

void expect_words(const std::string& message, std::initializer_list<const char*> words) {
  for (const char* word : words) EXPECT_NE(message.find(word), std::string::npos) << message << "\n  has no: " << word;
}

TEST(InitialWeights, OfAnotherModelAreRefusedWithEveryDifference) {
  Job job = job_of_golden();
  job.mutable_model()->set_hidden_size(48);
  job.mutable_model()->set_num_experts(12);
  job.mutable_model()->set_norm_topk_prob(false);
  job.mutable_model()->add_mlp_only_layers(0);
  job.mutable_model()->set_rope_theta(5e5);
  expect_words(only_problem(job),
               {golden.c_str(), "hidden_size: 32 in the folder, 48 in the job",
                "num_experts: 8 in the folder, 12 in the job", "norm_topk_prob: true in the folder",
                "[0, 1] in the folder, [1] in the job", "rope_theta: 10000 in the folder, 500000", "--print-model"});
}

TEST(InitialWeights, OfAnotherRouterAreRefused) {
  Job job = job_of_golden();
  job.mutable_model()->set_scoring_func(Model::SIGMOID);
  job.mutable_model()->set_routed_scaling_factor(2.5);
  job.mutable_model()->set_group_routing(Model::TOP_K_PER_GROUP);
  expect_words(only_problem(job), {"scoring_func: SOFTMAX in the folder, SIGMOID", "routed_scaling_factor: 1 in",
                                   "group_routing: NO_GROUPS in the folder, TOP_K_PER_GROUP"});
  // Losses and biases are what training does with the same weights.
  job = job_of_golden();
  job.mutable_model()->set_output_router_logits(true);
  job.mutable_model()->set_router_z_loss_coef(0.1);
  job.mutable_model()->set_e_score_correction_bias(true);
  EXPECT_TRUE(check_initial_weights(job).empty());
}

TEST(InitialWeights, ThatCannotBeReadAreRefused) {
  Job job = job_of_golden();
  job.set_initial_weights("/no/such/folder");
  expect_words(only_problem(job), {"/no/such/folder", "No such file", "--set initial_weights="});
}

TEST(InitialWeights, OfTheSameModelAreTaken) {
  Job job = job_of_golden();
  EXPECT_TRUE(check_initial_weights(job).empty());
  // Neither says what the model computes; and what is left out stands for its default.
  job.mutable_model()->set_initializer_range(0.5);
  job.mutable_model()->set_max_position_embeddings(16);
  EXPECT_TRUE(check_initial_weights(job).empty());
  job.clear_initial_weights();
  job.mutable_model()->set_hidden_size(48);
  EXPECT_TRUE(check_initial_weights(job).empty()) << "nothing to compare with";
}

}  // namespace
}  // namespace ananke
