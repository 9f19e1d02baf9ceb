#include "runtime/engine/optimizer_rules.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "ananke/job.pb.h"
#include "runtime/base/error.h"

namespace ananke {
namespace {

Job job_with(const std::string& rules) {
  Job job;
  const std::string text = R"(model { vocab_size: 32 hidden_size: 8 num_hidden_layers: 1 num_attention_heads: 2
    num_key_value_heads: 2 head_dim: 4 num_experts: 4 num_experts_per_tok: 2 moe_intermediate_size: 8 } )" +
                           rules;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &job));
  return job;
}

void expect_refusal(const std::string& rules, const std::string& part) {
  const Job job = job_with(rules);
  try {
    optimizer_of_each(job, ParameterTable(job.model()));
    FAIL() << "accepted: " << rules;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(OptimizerRules, RefuseWhatCannotBeMeant) {
  expect_refusal(R"(optimizer { match: "[" use: "adamw" })", "not a regular expression");
  expect_refusal(R"(optimizer { match: "expert" use: "adamw" })", "no optimizer rule matches");
  expect_refusal(R"(optimizer { match: ".*" use: "adamw" } optimizer { match: "norm" use: "muon" })", "earlier rules");
  expect_refusal(R"(optimizer { match: "attention_output" use: "muon" } optimizer { use: "adamw" })",
                 "no name matches");
}

TEST(OptimizerRules, FirstMatchWins) {
  const Job job = job_with(R"(optimizer { match: "experts" use: "muon" } optimizer { use: "adamw" })");
  const ParameterTable table(job.model());
  const std::vector<std::string> chosen = optimizer_of_each(job, table);
  for (std::size_t p = 0; p < chosen.size(); ++p) {
    EXPECT_EQ(chosen[p], table.parameters()[p].kind == ParameterKind::expert ? "muon" : "adamw");
  }
}

}  // namespace
}  // namespace ananke
