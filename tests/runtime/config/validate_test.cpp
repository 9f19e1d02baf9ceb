#include "runtime/config/validate.h"

#include <gtest/gtest.h>

#include "ananke/job.pb.h"

namespace ananke {
namespace {

Model small_model() {
  Model model;
  model.set_vocab_size(64);
  model.set_hidden_size(32);
  model.set_num_hidden_layers(4);
  model.set_num_attention_heads(4);
  model.set_num_experts(8);
  model.set_num_experts_per_tok(2);
  model.set_moe_intermediate_size(16);
  return model;
}

Training small_training() {
  Training training;
  training.set_steps(100);
  training.set_sequence_length(16);
  training.set_rows_per_step(8);
  return training;
}

// One problem, at that path, with these words.
void expect_problem(const Problems& problems, const std::string& path, std::initializer_list<std::string> words) {
  ASSERT_EQ(problems.size(), 1u) << path;
  EXPECT_EQ(problems[0].path, path);
  for (const std::string& word : words) {
    EXPECT_NE(problems[0].message.find(word), std::string::npos) << problems[0].message << "\n  has no: " << word;
  }
}

TEST(Validation, ChecksHeads) {
  Model model = small_model();
  EXPECT_TRUE(check_model(model).empty());
  model.set_num_key_value_heads(3);
  expect_problem(check_model(model), "model.num_key_value_heads", {"is 3", "4"});
  model.set_num_key_value_heads(8);
  expect_problem(check_model(model), "model.num_key_value_heads", {"is 8"});
  model = small_model();
  model.set_hidden_size(30);
  expect_problem(check_model(model), "model.hidden_size", {"is 30", "4", "head_dim"});
  model.set_head_dim(7);
  expect_problem(check_model(model), "model.head_dim", {"7", "odd"});
  model.set_head_dim(64);
  EXPECT_TRUE(check_model(model).empty()) << "head_dim is free of hidden_size";
}

Training::RecomputeLayers& add_range(Training& training, std::uint32_t first, std::uint32_t last) {
  Training::RecomputeLayers& range = *training.add_recompute_layers();
  range.set_first(first);
  range.set_last(last);
  range.set_recompute(Training::FULL);
  return range;
}

TEST(Validation, ChecksOperatorsOfRecompute) {
  Training training = small_training();
  training.add_recompute_operators(Training::NORMS);
  expect_problem(check_recompute(training, small_model()), "training.recompute_operators",
                 {"1 operator,", "NONE", "SELECTIVE"});
  training.set_recompute(Training::SELECTIVE);
  EXPECT_TRUE(check_recompute(training, small_model()).empty());
  training.add_recompute_operators(Training::ROUTER);
  training.add_recompute_operators(Training::NORMS);
  expect_problem(check_recompute(training, small_model()), "training.recompute_operators", {"NORMS twice"});
  training.clear_recompute_operators();
  EXPECT_TRUE(check_recompute(training, small_model()).empty());
  add_range(training, 0, 0).add_operators(Training::DISPATCH);
  expect_problem(check_recompute(training, small_model()), "training.recompute_layers[0].operators", {"FULL"});
}

TEST(Validation, ChecksRangesOfRecompute) {
  Training training = small_training();
  add_range(training, 0, 1);
  add_range(training, 3, 3);
  EXPECT_TRUE(check_recompute(training, small_model()).empty());
  add_range(training, 1, 2);
  expect_problem(check_recompute(training, small_model()), "training.recompute_layers[2]",
                 {"layers 1 to 2", "1 to 1", "recompute_layers[0]"});
  training.clear_recompute_layers();
  add_range(training, 2, 1);
  expect_problem(check_recompute(training, small_model()), "training.recompute_layers[0].last", {"is 1", "first 2"});
  training.clear_recompute_layers();
  add_range(training, 3, 4);
  expect_problem(check_recompute(training, small_model()), "training.recompute_layers[0].last",
                 {"is 4", "num_hidden_layers 4", "is 3"});
}

TEST(Validation, ChecksExperts) {
  Model model = small_model();
  model.set_num_experts_per_tok(9);
  expect_problem(check_model(model), "model.num_experts_per_tok", {"is 9", "num_experts 8"});
  model.clear_num_experts_per_tok();
  expect_problem(check_model(model), "model.num_experts_per_tok", {"missing", "8"});
  model = small_model();
  model.clear_moe_intermediate_size();
  expect_problem(check_model(model), "model.moe_intermediate_size", {"missing", "8"});
  model = small_model();
  model.set_num_experts(0);
  expect_problem(check_model(model), "model.intermediate_size", {"missing", "num_experts 0"});
  model.set_intermediate_size(64);
  EXPECT_TRUE(check_model(model).empty()) << "a dense model";
}

TEST(Validation, ChecksGroupsOfExperts) {
  Model model = small_model();
  model.set_n_group(4);
  expect_problem(check_model(model), "model.n_group", {"is 4", "NO_GROUPS", "TOP_K_PER_GROUP"});
  model.set_group_routing(Model::GROUPS_LIMITED_TOP_K);
  expect_problem(check_model(model), "model.topk_group", {"missing", "4 groups"});
  model.set_topk_group(5);
  expect_problem(check_model(model), "model.topk_group", {"is 5", "n_group 4"});
  model.set_topk_group(2);
  EXPECT_TRUE(check_model(model).empty());
  model.set_num_experts_per_tok(5);
  expect_problem(check_model(model), "model.num_experts_per_tok", {"is 5", "2 groups of 2 experts have 4"});
  model.set_num_experts_per_tok(4);
  EXPECT_TRUE(check_model(model).empty());
  model.set_num_experts_per_tok(2);
  model.set_n_group(8);
  expect_problem(check_model(model), "model.n_group", {"is 8 of 8 experts", "two best"});
  model.set_n_group(3);
  expect_problem(check_model(model), "model.n_group", {"is 3", "does not divide num_experts 8"});
  model.set_n_group(1);
  expect_problem(check_model(model), "model.n_group", {"is 1", "GROUPS_LIMITED_TOP_K"});
}

TEST(Validation, ChecksAFixedNumberPerGroup) {
  Model model = small_model();
  model.set_group_routing(Model::TOP_K_PER_GROUP);
  model.set_n_group(4);
  expect_problem(check_model(model), "model.num_experts_per_tok", {"is 2", "n_group 4", "set it to 4"});
  model.set_num_experts_per_tok(8);
  EXPECT_TRUE(check_model(model).empty());
  model.set_topk_group(2);
  expect_problem(check_model(model), "model.topk_group", {"is 2", "TOP_K_PER_GROUP", "remove it"});
}

TEST(Validation, ChecksWhichBiasesAreFixed) {
  Model model = small_model();
  model.add_router_bias_fixed_layers(4);
  expect_problem(check_model(model), "model.router_bias_fixed_layers[0]", {"layer 4", "e_score_correction_bias"});
  model.set_e_score_correction_bias(true);
  expect_problem(check_model(model), "model.router_bias_fixed_layers[0]", {"layer 4", "last one 3"});
  model.set_router_bias_fixed_layers(0, 3);
  EXPECT_TRUE(check_model(model).empty());
}

TEST(Validation, ForcesABalanceOrReplaysOne) {
  Training training = small_training();
  training.set_force_balanced_routing(true);
  EXPECT_TRUE(check_training(training).empty());
  training.set_replay_routing("log");
  expect_problem(check_training(training), "training.force_balanced_routing", {"replay_routing is 'log'"});
}

TEST(Validation, StoresInBf16WhatComputesInIt) {
  Training training = small_training();
  training.set_weights(Training::BF16);
  expect_problem(check_training(training), "training.weights", {"is BF16", "training.compute is FP32", "remove"});
  training.set_compute(Training::BF16);
  EXPECT_TRUE(check_training(training).empty());
}

TEST(Validation, WantsCheckpointsOrNone) {
  Checkpointing checkpoint;
  checkpoint.set_none(true);
  EXPECT_TRUE(check_checkpoint(checkpoint).empty());
  checkpoint.set_every_steps(5);
  expect_problem(check_checkpoint(checkpoint), "checkpoint.every_steps", {"is 5", "checkpoint.none"});
  checkpoint.set_none(false);
  EXPECT_TRUE(check_checkpoint(checkpoint).empty());
}

TEST(Validation, TracesStepsOfTheJobEachOnce) {
  Training training = small_training();
  training.set_steps(10);
  Telemetry telemetry;
  telemetry.add_trace_steps(1);
  telemetry.add_trace_steps(10);
  EXPECT_TRUE(check_telemetry(telemetry, training).empty());
  telemetry.add_trace_steps(11);
  expect_problem(check_telemetry(telemetry, training), "telemetry.trace_steps[2]", {"is 11", "from 1 to", "steps 10"});
  telemetry.set_trace_steps(2, 0);
  expect_problem(check_telemetry(telemetry, training), "telemetry.trace_steps[2]", {"is 0"});
  telemetry.set_trace_steps(2, 1);
  expect_problem(check_telemetry(telemetry, training), "telemetry.trace_steps[2]", {"is 1", "before"});
}

TEST(Validation, ChecksDenseLayers) {
  Model model = small_model();
  model.add_mlp_only_layers(1);
  expect_problem(check_model(model), "model.intermediate_size", {"missing", "1 mlp_only_layers"});
  model.set_intermediate_size(64);
  EXPECT_TRUE(check_model(model).empty());
  model.add_mlp_only_layers(4);
  expect_problem(check_model(model), "model.mlp_only_layers[1]", {"layer 4", "the last one 3"});
  model.set_mlp_only_layers(1, 1);
  expect_problem(check_model(model), "model.mlp_only_layers[1]", {"second time"});
  model.clear_mlp_only_layers();
  for (const unsigned layer : {0, 1, 2, 3}) model.add_mlp_only_layers(layer);
  expect_problem(check_model(model), "model.num_experts", {"is 8", "none of the 4 layers"});
  model = small_model();
  model.set_decoder_sparse_step(5);
  model.set_intermediate_size(64);
  expect_problem(check_model(model), "model.num_experts", {"decoder_sparse_step 5"});
}

TEST(Validation, ChecksTheMeshAgainstTheRanks) {
  Mesh mesh;
  EXPECT_TRUE(check_mesh(mesh, 4).empty());
  mesh.set_replicate(2);
  EXPECT_TRUE(check_mesh(mesh, 4).empty());
  EXPECT_EQ(effective_shard(mesh, 4), 2u);
  expect_problem(check_mesh(mesh, 3), "mesh.replicate", {"is 2", "3 ranks"});
  mesh.set_shard(3);
  expect_problem(check_mesh(mesh, 4), "mesh.shard", {"replicate 2 x shard 3 makes 6", "has 4"});
  mesh.set_replicate(4294967295u);
  mesh.set_shard(4294967295u);
  expect_problem(check_mesh(mesh, 1), "mesh.shard", {"18446744065119617025"});
}

TEST(Validation, ChecksTheExpertAxisAgainstShardAndRanks) {
  Mesh mesh;
  mesh.set_expert(2);
  EXPECT_EQ(ranks_of(mesh), 2u);
  EXPECT_TRUE(check_mesh(mesh, 8).empty());
  EXPECT_EQ(effective_shard(mesh, 8), 8u);
  expect_problem(check_mesh(mesh, 3), "mesh.expert",
                 {"is 2", "shard axis of 3 ranks", "3 ranks / replicate 1", "2 or 4"});
  mesh.set_expert_shard(3);
  EXPECT_EQ(effective_shard(mesh, 0), 6u);
  EXPECT_EQ(ranks_of(mesh), 6u);
  EXPECT_TRUE(check_mesh(mesh, 6).empty());
  expect_problem(check_mesh(mesh, 8), "mesh.expert_shard",
                 {"replicate 1 x expert_shard 3 x expert 2 makes 6", "has 8"});
  mesh.set_replicate(2);
  EXPECT_EQ(ranks_of(mesh), 12u);
  EXPECT_TRUE(check_mesh(mesh, 12).empty());
  mesh.set_shard(6);
  EXPECT_TRUE(check_mesh(mesh, 12).empty()) << "both given, and they agree";
  mesh.set_shard(4);
  expect_problem(check_mesh(mesh, 8), "mesh.expert_shard", {"is 3", "expert 2 makes a shard of 6", "mesh.shard is 4"});
  mesh.clear_expert_shard();
  mesh.set_expert(3);
  expect_problem(check_mesh(mesh, 8), "mesh.expert", {"is 3", "shard axis of 4", "8 ranks / replicate 2", "3 or 6"});
}

TEST(Validation, RefusesAnExpertAxisForAModelWithoutExperts) {
  Mesh mesh;
  Model model = small_model();
  model.set_num_experts(0);
  EXPECT_TRUE(check_expert_axis(mesh, model).empty());
  mesh.set_expert(4);
  expect_problem(check_expert_axis(mesh, model), "mesh.expert",
                 {"is 4", "none of the model's 4 layers", "set it to 1"});
  EXPECT_TRUE(check_expert_axis(mesh, small_model()).empty());
}

TEST(Validation, RemarksOnUnevenExpertAxes) {
  Job job;
  *job.mutable_model() = small_model();
  for (const unsigned even : {1, 2, 4, 8}) {
    job.mutable_mesh()->set_expert(even);
    EXPECT_TRUE(remarks_on(job).empty()) << even;
  }
  job.mutable_mesh()->set_expert(3);
  ASSERT_EQ(remarks_on(job).size(), 1u);
  EXPECT_NE(remarks_on(job)[0].find("8 experts do not divide evenly: ranks hold 2 or 3"), std::string::npos);
  job.mutable_mesh()->set_expert(12);
  ASSERT_EQ(remarks_on(job).size(), 1u);
  EXPECT_NE(remarks_on(job)[0].find("4 of every 12 ranks hold none"), std::string::npos) << remarks_on(job)[0];
}

TEST(Validation, RemarksOnGroupsAcrossRanksAndOnAForcedBalance) {
  Job job;
  *job.mutable_model() = small_model();
  job.mutable_model()->set_num_experts(12);
  job.mutable_model()->set_group_routing(Model::GROUPS_LIMITED_TOP_K);
  job.mutable_model()->set_n_group(3);
  job.mutable_mesh()->set_expert(2);
  ASSERT_EQ(remarks_on(job).size(), 1u);
  EXPECT_NE(remarks_on(job)[0].find("mesh.expert is 2 and model.n_group 3"), std::string::npos) << remarks_on(job)[0];
  job.mutable_mesh()->set_expert(3);
  EXPECT_TRUE(remarks_on(job).empty());
  job.mutable_training()->set_force_balanced_routing(true);
  ASSERT_EQ(remarks_on(job).size(), 1u);
  EXPECT_NE(remarks_on(job)[0].find("dealt to experts in turn"), std::string::npos) << remarks_on(job)[0];
}

TEST(Validation, ChecksThatMicrobatchesOfAGatherDivideAStep) {
  Training training = small_training();  // 8 rows
  for (const auto& [rows, gather, right] : {std::tuple{1u, 3u, false},
                                            {1u, 0u, true},
                                            {1u, 4u, true},
                                            {1u, 8u, false},
                                            {2u, 2u, true},
                                            {0u, 1u, true},
                                            {0u, 2u, false},
                                            {0u, 0u, true},
                                            {1u, 4294967295u, false}}) {
    training.set_rows_per_microbatch(rows);
    training.set_microbatches_per_gather(gather);
    EXPECT_EQ(check_rows(training, 2).empty(), right) << rows << ' ' << gather;
  }
  training.set_rows_per_microbatch(1);
  training.set_microbatches_per_gather(3);
  expect_problem(check_rows(training, 2), "training.microbatches_per_gather",
                 {"is 3", "the 4 microbatches that each of 2 ranks", "rows_per_step 8, rows_per_microbatch 1",
                  "set it to 2, or to 0"});
  training.set_rows_per_microbatch(0);
  expect_problem(check_rows(training, 2), "training.microbatches_per_gather",
                 {"is 3", "the 1 microbatch that", "rows_per_microbatch 4", "set it to 1"});
}

// A large prime of microbatches has no divisor near what is asked: the advice comes at once all the same.
TEST(Validation, FindsADivisorOfVeryManyMicrobatches) {
  Training training = small_training();
  training.set_rows_per_step(4294967291u);
  training.set_rows_per_microbatch(1);
  training.set_microbatches_per_gather(4294967290u);
  expect_problem(check_rows(training, 1), "training.microbatches_per_gather", {"is 4294967290", "set it to 1,"});
}

TEST(Validation, ChecksHowManyMicrobatchesAStepHas) {
  const Model model = small_model();  // 4 layers
  Training training = small_training();
  training.set_rows_per_microbatch(1);
  training.set_rows_per_step(2'000'000);
  EXPECT_TRUE(check_microbatches(training, model, 2).empty());
  training.set_rows_per_step(2'000'002);
  expect_problem(check_microbatches(training, model, 2), "training.rows_per_microbatch",
                 {"is 1", "1000001 microbatches of 4 layers", "2 ranks", "raise it"});
  training.set_rows_per_step(4294967295u);  // more than an int counts
  expect_problem(check_microbatches(training, model, 1), "training.rows_per_microbatch", {"4294967295 microbatches"});
}

TEST(Validation, ChecksHowManyTokensAMicrobatchHas) {
  const Model model = small_model();
  Training training = small_training();
  training.set_sequence_length(16777216);
  training.set_rows_per_step(254);
  EXPECT_TRUE(check_microbatches(training, model, 2).empty()) << "127 rows of 2^24 tokens";
  training.set_rows_per_step(256);
  expect_problem(check_microbatches(training, model, 2), "training.rows_per_microbatch",
                 {"is 0", "128 rows of 16777216 tokens", "a microbatch of 2147483648", "set it to 64"});
  training.set_rows_per_microbatch(64);
  EXPECT_TRUE(check_microbatches(training, model, 2).empty());
}

TEST(Validation, ChecksHowRowsAreShared) {
  Training training = small_training();
  EXPECT_TRUE(check_rows(training, 4).empty());
  expect_problem(check_rows(training, 3), "training.rows_per_step", {"is 8", "3 ranks", "6 or 9"});
  expect_problem(check_rows(training, 16), "training.rows_per_step", {"16"});
  training.set_rows_per_microbatch(2);
  EXPECT_TRUE(check_rows(training, 4).empty());
  training.set_rows_per_microbatch(3);
  expect_problem(check_rows(training, 4), "training.rows_per_microbatch", {"is 3", "each of 4 ranks has 2 rows", "12"});
  training.set_rows_per_microbatch(4294967295u);
  expect_problem(check_rows(training, 4), "training.rows_per_microbatch", {"17179869180"});
}

TEST(Validation, ChecksPositionsAndSchedules) {
  Model model = small_model();
  model.set_max_position_embeddings(15);
  expect_problem(check_positions(model, small_training()), "training.sequence_length", {"is 16", "15"});
  LearningRate rate;
  EXPECT_TRUE(check_learning_rate(rate, small_training()).empty());
  rate.set_shape(LearningRate::WARMUP_STABLE_DECAY);
  rate.set_warmup_steps(60);
  rate.set_decay_steps(41);
  expect_problem(check_learning_rate(rate, small_training()), "learning_rate.warmup_steps",
                 {"60", "41", "101", "100 steps"});
  rate.set_total_steps(200);
  EXPECT_TRUE(check_learning_rate(rate, small_training()).empty());
  rate.set_total_steps(99);
  rate.set_decay_steps(1);
  expect_problem(check_learning_rate(rate, small_training()), "learning_rate.total_steps", {"is 99", "100"});
  rate.set_total_steps(0);
  rate.set_shape(LearningRate::COSINE);
  expect_problem(check_learning_rate(rate, small_training()), "learning_rate.decay_steps", {"is 1", "COSINE"});
}

TEST(Validation, WantsExactlyOneSourceOfTokens) {
  Data data;
  expect_problem(check_data(data, small_model()), "data", {"none", "exactly one"});
  data.set_tokens("x.h5");
  EXPECT_TRUE(check_data(data, small_model()).empty());
  data.mutable_generated();
  expect_problem(check_data(data, small_model()), "data", {"both"});
  data.clear_tokens();
  data.mutable_generated()->set_shortest(600);
  expect_problem(check_data(data, small_model()), "data.generated.longest", {"is 512", "600"});
  data.mutable_generated()->clear_shortest();
  data.mutable_generated()->set_branches(65);
  expect_problem(check_data(data, small_model()), "data.generated.branches", {"is 65", "64"});
}

TEST(Validation, WantsHeldOutSetsThatHaveNamesAndOneSourceEach) {
  Data data;
  data.set_tokens("x.h5");
  Evaluation evaluation;
  EXPECT_TRUE(check_evaluation(evaluation, data).empty());
  HeldOut* first = evaluation.add_held_out();
  first->set_name("wiki");
  expect_problem(check_evaluation(evaluation, data), "evaluation.held_out[0]", {"'wiki'", "none", "exactly one"});
  first->set_tokens("y.h5");
  EXPECT_TRUE(check_evaluation(evaluation, data).empty());
  first->set_generated_documents(3);
  expect_problem(check_evaluation(evaluation, data), "evaluation.held_out[0]", {"both"});
  first->clear_tokens();
  expect_problem(check_evaluation(evaluation, data), "evaluation.held_out[0].generated_documents",
                 {"is 3", "data.generated is not set"});
  data.mutable_generated();
  EXPECT_TRUE(check_evaluation(evaluation, data).empty());
  HeldOut* second = evaluation.add_held_out();
  second->set_tokens("y.h5");
  second->set_name("wiki");
  expect_problem(check_evaluation(evaluation, data), "evaluation.held_out[1].name",
                 {"is 'wiki'", "the name of evaluation.held_out[0]"});
  for (const std::string& bad :
       {std::string("a b"), std::string("a\nb"), std::string("\xc3\xa9"), std::string("a/b"), std::string(65, 'a')}) {
    second->set_name(bad);
    expect_problem(check_evaluation(evaluation, data), "evaluation.held_out[1].name", {"no name for a set"});
  }
  second->set_name(std::string(64, 'a'));
  EXPECT_TRUE(check_evaluation(evaluation, data).empty());
}

TEST(Validation, ChecksRoutingFilesAndRules) {
  Training training = small_training();
  training.set_record_routing("a");
  EXPECT_TRUE(check_training(training).empty());
  training.set_replay_routing("b");
  expect_problem(check_training(training), "training.replay_routing", {"'a'", "'b'"});
  Job job;
  job.add_optimizer()->set_match("norm$");
  EXPECT_TRUE(check_optimizer_rules(job).empty());
  job.add_optimizer()->set_match("mlp.(gate");
  expect_problem(check_optimizer_rules(job), "optimizer[1].match", {"mlp.(gate"});
  job.mutable_optimizer(1)->set_match(std::string(100'000, '('));
  expect_problem(check_optimizer_rules(job), "optimizer[1].match", {"100000 bytes", "1000"});
}

}  // namespace
}  // namespace ananke
