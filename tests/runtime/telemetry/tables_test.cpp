#include "runtime/telemetry/tables.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "ananke/memory.pb.h"
#include "ananke/model.pb.h"
#include "runtime/model/parameter_table.h"

namespace ananke {
namespace {

TEST(Tables, EmptyOnesHaveTheirSums) {
  EXPECT_EQ(memory_plan_text({}), "memory of one rank  place  planned\n");
  EXPECT_EQ(ledger_text("host memory", {}, 5),
            "host memory  pieces  in use\n"
            "sum               0     0 B\n"
            "peak                    5 B\n");
}

TEST(Tables, PlanAddsUpLinesOfOnePurposeAndPutsTheLargestFirst) {
  const std::vector<PlanLine> lines = {{"weights", Place::device, 1024},
                                       {"gather slots", Place::device, 4096},
                                       {"weights", Place::device, 1024},
                                       {"weights", Place::host, 100}};
  EXPECT_EQ(memory_plan_text(lines),
            "memory of one rank   place   planned\n"
            "gather slots        device  4.00 KiB\n"
            "weights             device  2.00 KiB\n"
            "weights               host     100 B\n"
            "sum                 device  6.00 KiB\n"
            "sum                   host     100 B\n");
}

TEST(Tables, WhatIsGivenBackBeforeTheFirstStepIsNotInTheSums) {
  const std::vector<PlanLine> lines = {{"weights", Place::device, 1024},
                                       {"landing", Place::device, 512, Lifetime::use},
                                       {"staging", Place::host, 4096, Lifetime::start}};
  EXPECT_EQ(memory_plan_text(lines),
            "memory of one rank           place   planned\n"
            "staging, at the start only    host  4.00 KiB\n"
            "weights                     device  1.00 KiB\n"
            "landing                     device     512 B\n"
            "sum                         device  1.50 KiB\n");
}

TEST(Tables, AReportHasWhatWasMeasuredBesideThePlan) {
  MemoryReport report;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"(rank: 3 device_planned: 1024 host_planned: 0
         line { purpose: "weights" place: "device" lifetime: "run" planned: 1024 }
         line { purpose: "staging" place: "host" lifetime: "start" planned: 10 })",
      &report));
  EXPECT_EQ(memory_report_text(report),
            "memory of rank 3             place   planned\n"
            "weights                     device  1.00 KiB\n"
            "staging, at the start only    host      10 B\n"
            "sum                         device  1.00 KiB\n"
            "sum                           host       0 B\n");
  report.mutable_line(0)->set_measured(512);
  report.set_device_measured(512);
  EXPECT_EQ(memory_report_text(report),
            "memory of rank 3             place   planned  measured  of plan\n"
            "weights                     device  1.00 KiB     512 B    50.0%\n"
            "staging, at the start only    host      10 B         ?\n"
            "sum                         device  1.00 KiB     512 B    50.0%\n"
            "sum                           host       0 B       0 B\n");
}

TEST(Tables, LedgerHasSumAndPeak) {
  const std::vector<Arena::Line> lines = {{"weights", 2048, 2}, {"gradients", 1024, 1}};
  EXPECT_EQ(ledger_text("host memory", lines, 4096),
            "host memory  pieces    in use\n"
            "weights           2  2.00 KiB\n"
            "gradients         1  1.00 KiB\n"
            "sum               3  3.00 KiB\n"
            "peak                 4.00 KiB\n");
}

TEST(Tables, ParametersFoldLayersAndExperts) {
  Model model;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "vocab_size: 32 hidden_size: 8 num_hidden_layers: 3 num_attention_heads: 2 num_key_value_heads: 1 head_dim: 4 "
      "num_experts: 4 num_experts_per_tok: 2 moe_intermediate_size: 6 intermediate_size: 16 mlp_only_layers: 0",
      &model));
  const ParameterTable table(model);
  const std::string text = parameter_table_text(table, 16);
  EXPECT_NE(text.find("model.layers.*.mlp.experts.*.gate_proj.weight    [6, 8]        8       384\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("model.layers.*.mlp.gate_proj.weight             [16, 8]        1       128\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("active per token; "), std::string::npos) << text;
  EXPECT_EQ(text.find(".1."), std::string::npos) << text;
}

}  // namespace
}  // namespace ananke
