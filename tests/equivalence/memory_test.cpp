// What a rank plans before it starts is what it takes, for jobs of many shapes.
#include <gtest/gtest.h>

#include "runtime/engine/engine.h"
#include "tests/equivalence/rank_runs.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

struct Shape {
  const char* name;
  MeshShape mesh;
  const char* changes;    // of the job
  const char* fsdp = "";  // its config
  const char* transport = "THREADS";
  int expert_chunks = 0;
  int microbatches = 1;
  bool muon = false;
};

const char* larger = "model { vocab_size: 509 hidden_size: 48 intermediate_size: 96 moe_intermediate_size: 40 } ";

const Shape shapes[] = {
    {"one rank", {1, 1}, ""},
    {"a shard axis", {1, 4}, ""},
    {"a shard axis over Gloo", {1, 3}, "training { rows_per_step: 9 }", "", "GLOO"},
    {"replicas over Gloo", {2, 2}, "training { check_replicas: true }", "", "GLOO"},
    {"recompute and microbatches", {1, 2}, "training { recompute: FULL }", "", "THREADS", 0, 4},
    {"layer by layer", {2, 1}, "training { microbatches_per_gather: 2 }", "", "THREADS", 0, 2},
    {"narrow wires and copies of the node",
     {1, 4},
     "checkpoint { none: true }",
     "gather_dense: BF16 gather_experts: FP8_E4M3 reduce_dense: BF16_ALL_TO_ALL reduce_experts: BF16_ALL_TO_ALL "
     "node_copy: true"},
    {"narrow wires over Gloo",
     {1, 3},
     "training { rows_per_step: 9 } checkpoint { none: true }",
     "reduce_dense: BF16_ALL_TO_ALL reduce_experts: BF16_ALL_TO_ALL",
     "GLOO"},
    {"everything stays gathered", {1, 2}, "", "reshard_after_forward: false reduce_blocks: 0"},
    {"experts shared out", {1, 4, 2}, "training { force_balanced_routing: true }", "", "THREADS", 2},
    {"Muon",
     {2, 2},
     "matrix_updates { share_replicas: true bucket: \"4 KiB\" }",
     "prefetch_blocks: 0",
     "THREADS",
     0,
     1,
     true},
    {"Muon over Gloo", {1, 3}, "training { rows_per_step: 9 }", "", "GLOO", 0, 1, true},
    {"state on the host", {1, 2}, "", "residence: HOST prefetch_blocks: 0 reduce_blocks: 0", "THREADS", 0, 2},
    {"state of some layers on the host, and Muon",
     {2, 2},
     "host_updates { bucket: \"16 KiB\" } training { microbatches_per_gather: 0 }",
     "residence: HOST host_fraction: 0.5 gather_dense: BF16",
     "THREADS",
     0,
     1,
     true},
    {"balanced routers",
     {1, 2},
     "model { scoring_func: SIGMOID e_score_correction_bias: true output_router_logits: true }"},
    {"dense", {1, 2}, "model { num_experts: 0 tie_word_embeddings: true }", "", "GLOO"},
};

class PlannedMemory : public ::testing::TestWithParam<Shape> {
 protected:
  MemoryReport largest(const std::vector<MemoryReport>& reports) {
    MemoryReport most;
    for (const MemoryReport& report : reports) {
      if (report.device_planned() >= most.device_planned()) most = report;
    }
    return most;
  }
};

TEST_P(PlannedMemory, IsWhatIsTaken) {
  const Shape& shape = GetParam();
  const TemporaryFolder folder;
  Job job = small_job(folder.path() / "run", std::string(larger) + "training { steps: 4 } " + shape.changes);
  if (shape.muon) {
    job.mutable_optimizer(0)->set_match("norm|embed|lm_head|mlp\\.gate\\.");
    OptimizerRule& rule = *job.add_optimizer();
    rule.set_match(".*");
    rule.set_use("muon");
    add_plugin(job, "muon", "lr: 0.01");
  }
  add_plugin(job, "backend_host", std::string("transport: ") + shape.transport);
  add_plugin(job, "fsdp", shape.fsdp);
  RunRequest request{shape.mesh};
  request.expert_chunks = shape.expert_chunks;
  request.microbatches = shape.microbatches;
  const RunResult result = train(job, request);
  ASSERT_EQ(std::ssize(result.memory), shape.mesh.ranks());
  for (const MemoryReport& report : result.memory) {
    std::uint64_t planned = 0, taken = 0;
    for (const MemoryLine& line : report.line()) {
      if (line.purpose() == "process") continue;  // all ranks are one process here
      if (line.lifetime() != "start") {
        planned += line.planned();
        taken += line.measured();
      }
      if (line.lifetime() == "use") {
        EXPECT_LE(line.measured(), line.planned()) << line.purpose() << " on rank " << report.rank();
      } else {
        EXPECT_EQ(line.measured(), line.planned()) << line.purpose() << " on rank " << report.rank();
      }
    }
    const auto ratio = static_cast<double>(taken) / static_cast<double>(planned);
    EXPECT_GE(ratio, 0.95) << report.DebugString();
    EXPECT_LE(ratio, 1.05) << report.DebugString();
    RecordProperty("taken of planned, rank " + std::to_string(report.rank()), std::to_string(ratio));
  }
}

INSTANTIATE_TEST_SUITE_P(Jobs, PlannedMemory, ::testing::ValuesIn(shapes), [](const auto& info) {
  std::string name = info.param.name;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});

}  // namespace
}  // namespace ananke
