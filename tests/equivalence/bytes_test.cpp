// Bytes of the step record against the formula (runtime/roles/traffic.h), for whole models: what a rank receives is
// predicted from the job, the mesh and the placement, and must be what was counted, line by line.
#include <gtest/gtest.h>

#include <cstdio>
#include <numeric>
#include <set>
#include <tuple>

#include "runtime/comm/placement.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/matrix_work.h"
#include "runtime/engine/optimizer_rules.h"
#include "tests/equivalence/rank_runs.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

using Key = std::tuple<std::string, std::string, std::string, std::string>;  // resource, axis, kind of unit, direction
using Lines = std::map<Key, std::uint64_t>;

// Three layers with experts. The embedding and the head are larger than what else a layer has, and nothing is gathered
// ahead, so that the memory of every unit is overwritten between its uses: each use gathers.
const char* model = R"(model { num_hidden_layers: 3 decoder_sparse_step: 1 vocab_size: 400 moe_intermediate_size: 16 }
                       training { steps: 2 rows_per_step: 16 force_balanced_routing: true }
                       evaluation { every_steps: 0 } )";

struct Wires {
  const char* name;
  const char* gather_dense;
  const char* gather_experts;
  const char* reduce;
  bool reshard = true, node_copy = false;

  std::string config() const {
    return fmt::format(
        "prefetch_blocks: 0 reduce_blocks: 0 gather_dense: {} gather_experts: {} reduce_dense: {} reduce_experts: {} "
        "reshard_after_forward: {} node_copy: {}",
        gather_dense, gather_experts, reduce, reduce, reshard, node_copy);
  }
};
const Wires all_wires[] = {
    {"fp32", "FP32", "FP32", "FP32_REDUCE_SCATTER"},
    {"bf16, summed in fp32", "BF16", "BF16", "FP32_REDUCE_SCATTER", true, true},
    {"fp8 and bf16", "BF16", "FP8_E4M3", "BF16_ALL_TO_ALL"},
    {"fp8 everywhere", "FP8_E4M3", "FP8_E4M3", "BF16_ALL_TO_ALL", true, true},
    {"kept", "FP8_E4M3", "BF16", "BF16_ALL_TO_ALL", false},
};

struct Shape {
  MeshShape mesh;
  int microbatches = 1;
  int per_gather = 1;  // microbatches; 0: all
  bool recompute = false;
  int chunks = 0;
  bool bf16_tokens = false;  // of the exchange
};

std::uint64_t up_to_16(std::uint64_t bytes) { return (bytes + 15) / 16 * 16; }

// What rank 0 receives in one step.
class Prediction {
 public:
  Prediction(const Job& job, const Shape& shape, const Wires& wires)
      : model_(job.model()), shape_(shape), wires_(wires), table_(model_), placement_(table_, shape.mesh) {
    for (int unit = 0; unit < static_cast<int>(table_.units().size()); ++unit) {
      gathers(unit);
      reductions(unit);
    }
  }
  // copies_in: of other ranks' tokens that come to rank 0, per layer and microbatch; copies_out: of its own.
  Lines with_exchange(std::uint64_t copies_in, std::uint64_t copies_out) {
    if (shape_.mesh.expert == 1) return lines_;
    const std::uint64_t each = static_cast<std::uint64_t>(shape_.microbatches) * table_layers();
    const std::uint64_t again = shape_.recompute ? 2 : 1;
    const std::uint64_t values = up_to_16(model_.hidden_size() * (shape_.bf16_tokens ? 2 : 4)),
                        of_choices = up_to_16(model_.num_experts_per_tok() * 4);
    const auto add = [&](const char* direction, std::uint64_t bytes) {
      lines_[{"nvlink", "expert", "experts", direction}] += bytes;
    };
    add("dispatch", again * each * copies_in * (values + 2 * of_choices));
    add("combine", each * copies_out * values);
    add("combine_backward", each * copies_in * values);
    add("dispatch_backward", each * copies_out * (values + of_choices));
    return lines_;
  }

 private:
  static std::uint64_t at(std::int64_t number) { return static_cast<std::uint64_t>(number); }
  std::uint64_t table_layers() const { return model_.num_hidden_layers(); }
  bool is_experts(int unit) const { return kind(unit) == UnitKind::experts; }
  UnitKind kind(int unit) const { return table_.units()[at(unit)].kind; }
  std::uint64_t groups() const { return shape_.per_gather == 0 ? 1 : at(shape_.microbatches / shape_.per_gather); }
  void add(int unit, const char* resource, const std::string& axis, const char* direction, std::uint64_t bytes) {
    if (bytes > 0) lines_[{resource, axis, name_of(kind(unit)), direction}] += bytes;
  }

  // The scales of 128 x 128 blocks that the most burdened rank sends: of all blocks of the rows of blocks that its
  // range has an element of, counted one by one.
  std::uint64_t with_scales(int unit, const UnitPlacement& place) const {
    const std::int64_t range = place.segment(UnitSegment::wire).range;
    std::uint64_t most = 0;
    for (int part = 0; part < place.ranks; ++part) {
      std::uint64_t scales = 0;
      for (std::size_t i = 0; i < place.offset.size(); ++i) {
        const int number = table_.units()[at(unit)].parameters[place.first_parameter + i];
        const Parameter& parameter = table_.parameters()[at(number)];
        if (segment_of(parameter.kind) != UnitSegment::wire) continue;
        std::set<std::int64_t> rows;
        for (std::int64_t e = 0; e < parameter.shape.elements(); ++e) {
          if ((place.offset[i] + e) / range == part) rows.insert(e / parameter.shape[1] / 128);
        }
        scales += rows.size() * at((parameter.shape[1] + 127) / 128);
      }
      most = std::max(most, at(range) + scales);
    }
    return up_to_16(most);
  }
  std::uint64_t gathered_part(int unit, const UnitPlacement& place) const {
    const std::string format = is_experts(unit) ? wires_.gather_experts : wires_.gather_dense;
    const std::uint64_t range = at(place.segment(UnitSegment::wire).range);
    return format == "FP32" ? 4 * range : format == "BF16" ? 2 * range : with_scales(unit, place);
  }
  void gathers(int unit) {
    const UnitPlacement& place = placement_.unit(unit, {});
    if (place.ranks == 1) return;
    const bool layer = kind(unit) == UnitKind::dense || is_experts(unit);  // also used in its backward
    const std::uint64_t all = wires_.reshard ? groups() * (layer ? 2 : 1) : 1;
    const bool copied = wires_.node_copy && !is_experts(unit);
    const std::uint64_t part = gathered_part(unit, place), fp32 = 4 * at(place.segment(UnitSegment::fp32).range);
    const std::uint64_t others = at(place.ranks - 1), ranks = at(place.ranks);
    add(unit, "network", is_experts(unit) ? "expert_shard" : "shard", "gather",
        (copied ? 1 : all) * others * (part + fp32));
    // All ranks of the test are on one node.
    if (copied) add(unit, "nvlink", "node", "gather", (all - 1) * others * up_to_16((part + fp32) * ranks / ranks));
  }
  void reductions(int unit) {
    const UnitPlacement& place = placement_.unit(unit, {});
    const std::uint64_t wire = at(place.segment(UnitSegment::wire).range),
                        fp32 = at(place.segment(UnitSegment::fp32).range), replicas = at(shape_.mesh.replicate);
    const std::uint64_t bytes = std::string(wires_.reduce) == "BF16_ALL_TO_ALL" ? 2 : 4;
    add(unit, "network", is_experts(unit) ? "expert_shard" : "shard", "reduce",
        groups() * at(place.ranks - 1) * (bytes * wire + 4 * fp32));
    add(unit, "network", "replicate", "reduce", 2 * (replicas - 1) * 4 * (wire + fp32) / replicas);
  }

  const Model& model_;
  const Shape& shape_;
  const Wires& wires_;
  ParameterTable table_;
  Placement placement_;
  Lines lines_;
};

// Of a rank with `tokens` tokens whose t-th chooses experts (t k + j) mod E: copies for rank `to` of the expert axis.
std::uint64_t copies_to(const Model& model, const Shape& shape, int to) {
  const auto tokens = 16 * 32 / (shape.mesh.ranks() * shape.microbatches);
  const int experts = static_cast<int>(model.num_experts()), k = static_cast<int>(model.num_experts_per_tok());
  std::uint64_t copies = 0;
  for (int t = 0; t < tokens; ++t) {
    bool wanted = false;
    for (int j = 0; j < k; ++j) wanted = wanted || (t * k + j) % experts * shape.mesh.expert / experts == to;
    copies += wanted ? 1 : 0;
  }
  return copies;
}

Lines counted_in(const StepRecord& record) {
  Lines lines;
  for (const TrafficRecord& line : record.traffic()) {
    const bool first =
        lines.try_emplace({line.resource(), line.axis(), line.unit(), line.direction()}, line.bytes()).second;
    EXPECT_TRUE(first) << "a line twice: " << line.ShortDebugString();
  }
  return lines;
}

std::uint64_t sum_of(const Lines& lines, const std::string& direction) {
  std::uint64_t bytes = 0;
  for (const auto& [key, line] : lines) bytes += std::get<3>(key) == direction ? line : 0;
  return bytes;
}

void expect_lines(const RunResult& run, const Lines& wanted) {
  ASSERT_FALSE(run.steps.empty());
  for (const StepRecord& step : run.steps) {
    EXPECT_EQ(counted_in(step), wanted) << "step " << step.step();
    EXPECT_EQ(step.gather_bytes(), sum_of(wanted, "gather"));
    EXPECT_EQ(step.reduce_bytes(), sum_of(wanted, "reduce"));
  }
}

RunRequest request_of(const Shape& shape) {
  RunRequest request{shape.mesh, shape.microbatches};
  request.expert_chunks = shape.chunks;
  request.expert_bf16 = shape.bf16_tokens;
  return request;
}

std::string training_of(const Shape& shape) {
  return fmt::format("training {{ microbatches_per_gather: {} recompute: {} }} ", shape.per_gather,
                     shape.recompute ? "FULL" : "NONE");
}

TEST(Bytes, OfAStepEqualTheFormulaOnEveryMeshWithEveryWire) {
  const TemporaryFolder folder;
  const Shape shapes[] = {
      {{1, 1}, 2},
      {{1, 2}, 2},
      {{1, 4}, 2, 0},
      {{2, 2}, 1, 1, true},
      {{3, 1}, 1},
      {{1, 2, 2}, 2, 1, false, 3},
      {{1, 4, 4}, 2, 0, false, 2, true},
      {{1, 4, 2}, 2, 0, true, 2},
      {{2, 2, 2}, 1, 1, true, 1, true},
      {{2, 4, 2}, 2, 1, false, 2},
      {{1, 2}, 4, 2},
      {{1, 4, 2}, 4, 2, true, 2},
      {{1, 8, 4}, 1, 1, true, 4, true},
      {{1, 8, 2}, 1, 1, false, 1},
  };
  int number = 0;
  for (const Shape& shape : shapes) {
    for (const Wires& wires : all_wires) {
      SCOPED_TRACE(to_string(shape.mesh) + ", " + wires.name);
      const std::string rows = shape.mesh.ranks() == 3 ? "training { rows_per_step: 12 } " : "";
      Job job = small_job(folder / std::to_string(number++), model + training_of(shape) + rows);
      add_plugin(job, "fsdp", wires.config());
      const std::uint64_t of_one = copies_to(job.model(), shape, 0);
      std::uint64_t in = 0, out = 0;
      for (int other = 1; other < shape.mesh.expert; ++other) {
        in += of_one;  // all ranks have as many tokens
        out += copies_to(job.model(), shape, other);
      }
      expect_lines(train(job, request_of(shape)), Prediction(job, shape, wires).with_exchange(in, out));
      if (HasFailure()) return;
    }
  }
}

// A fixed number of experts from every group, a group being what a rank holds: whatever the routers decide, every token
// has one copy for every other rank, and all ranks receive alike.
TEST(Bytes, OfDispatchAreOneCopyForEveryRankWithAnExpertOfTheToken) {
  const TemporaryFolder folder;
  const Wires& wires = all_wires[0];
  int number = 0;
  for (const Shape& shape : {Shape{{1, 4, 4}, 2, 1, false, 2}, Shape{{1, 4, 2}, 1, 1, true, 3}}) {
    SCOPED_TRACE(to_string(shape.mesh));
    Job job = small_job(folder / std::to_string(number++),
                        model + training_of(shape) +
                            fmt::format("model {{ num_experts: 8 num_experts_per_tok: 4 group_routing: TOP_K_PER_GROUP "
                                        "n_group: {} }} training {{ force_balanced_routing: false }}",
                                        shape.mesh.expert));
    add_plugin(job, "fsdp", wires.config());
    const std::uint64_t others = static_cast<std::uint64_t>(shape.mesh.expert) - 1;
    const std::uint64_t tokens = 16 * 32 / 4 / static_cast<std::uint64_t>(shape.microbatches);
    expect_lines(train(job, request_of(shape)),
                 Prediction(job, shape, wires).with_exchange(others * tokens, others * tokens));
  }
}

// Of experts' parameters, forward and backward gathers and one reduction: half of the bytes, but for a scale per 128 x
// 128 values. The same bytes for the experts of a model of a trillion parameters over a link of 25 GB/s, in seconds.
TEST(Bytes, OfExpertsInFp8AndBf16AreHalfOfThoseInBf16AndFp32) {
  const TemporaryFolder folder;
  const std::string wide = "model { hidden_size: 128 moe_intermediate_size: 256 num_experts: 8 vocab_size: 700 }";
  const Shape shape{{1, 4, 2}, 1, 1, false, 1};
  const auto bytes_with = [&](const Wires& wires) {
    Job job = small_job(folder / wires.name, model + training_of(shape) + wide);
    add_plugin(job, "fsdp", wires.config());
    const Lines lines = counted_in(train(job, request_of(shape)).steps.at(1));
    return std::pair{lines.at({"network", "expert_shard", "experts", "gather"}),
                     lines.at({"network", "expert_shard", "experts", "reduce"})};
  };
  const auto [wide_gather, wide_reduce] = bytes_with({"wide", "BF16", "BF16", "FP32_REDUCE_SCATTER"});
  const auto [narrow_gather, narrow_reduce] = bytes_with({"narrow", "BF16", "FP8_E4M3", "BF16_ALL_TO_ALL"});
  // Of the other rank that shares a coordinate's experts: two of its four, in three layers.
  constexpr std::uint64_t blocks = 3 * 2 * 3 * 2, parameters = blocks * 128 * 128;
  EXPECT_EQ(wide_gather, 2 * 2 * parameters);
  EXPECT_EQ(wide_reduce, 4 * parameters);
  EXPECT_EQ(narrow_gather, 2 * (parameters + 3 * 16)) << "a scale for each of 12 blocks of a layer, made up to 16";
  EXPECT_EQ(narrow_reduce, 2 * parameters);
  EXPECT_EQ(2 * (narrow_gather + narrow_reduce - 2 * 3 * 16), wide_gather + wide_reduce);

  // Experts of one of four coordinates: 3 x 6144 x 1792 x 96 in 74 layers.
  constexpr double experts = 3.0 * 6144 * 1792 * 96 * 74, link = 25e9;
  const auto seconds = [&](std::uint64_t bytes, std::uint64_t scales) {
    return experts * static_cast<double>(bytes - scales) / static_cast<double>(parameters) / link;
  };
  const double before = seconds(wide_gather + wide_reduce, 0),
               after = seconds(narrow_gather + narrow_reduce, 2 * 3 * 16) + 2 * experts / (128 * 128) / link;
  std::printf(
      "experts of 234.6e9 parameters over 25 GB/s: %.1f s in bf16 and fp32, %.1f s in fp8 and bf16, %.5f of it\n",
      before, after, after / before);
  EXPECT_NEAR(before, 75.1, 0.05);
  EXPECT_NEAR(after, 37.5, 0.05);
}

// What of a matrix lies on a rank of the shard axis.
std::uint64_t held(const Placement& placement, int rank, const MatrixWork::Assignment& matrix) {
  std::int64_t elements = 0;
  for (const Fragment& f : placement.fragments(rank)) {
    if (f.parameter != matrix.parameter) continue;
    const std::int64_t begin = std::max(matrix.begin, f.begin),
                       end = std::min(matrix.begin + matrix.rows * matrix.columns, f.begin + f.count);
    elements += std::max<std::int64_t>(0, end - begin);
  }
  return static_cast<std::uint64_t>(elements);
}

Job muon_job(const std::filesystem::path& run_dir, const std::string& changes) {
  Job job = small_job(run_dir, changes);
  job.clear_optimizer();
  for (const auto& [match, use] : {std::pair{"experts|_proj", "muon"}, {".*", "adamw"}}) {
    OptimizerRule* rule = job.add_optimizer();
    rule->set_match(match);
    rule->set_use(use);
  }
  add_plugin(job, "muon", "lr: 0.01");
  return job;
}

// Of rank 0: what its matrices lack comes, and then the directions of what it stores of others' matrices; replicas that
// share the work send each other what they made. {shard axis, replicate axis}
std::pair<std::uint64_t, std::uint64_t> redistributed(const Job& job, const MeshShape& mesh) {
  const ParameterTable table(job.model());
  const Placement placement(table, mesh);
  const bool shared = job.matrix_updates().share_replicas();
  std::uint64_t shard = 0, replicate = 0;
  run_roles(job, {1, 1}, [&](const RoleContext&, EngineRoles& roles, Rendezvous&) {
    std::vector<std::vector<Fragment>> fragments;
    for (int rank = 0; rank < mesh.shard; ++rank) fragments.push_back(placement.fragments(rank));
    const std::vector<std::string> chosen = optimizer_of_each(job, table);
    const MatrixWork work(table, chosen, roles.optimizers, fragments,
                          {.replicas = mesh.replicate, .share_replicas = shared});
    for (const MatrixWork::Assignment& matrix : work.assignments()) {
      const std::uint64_t mine = held(placement, 0, matrix);
      if (shared && matrix.replica != 0) {
        replicate += 4 * mine;
      } else {
        shard += 4 * (matrix.rank == 0 ? static_cast<std::uint64_t>(matrix.rows * matrix.columns) - mine : mine);
      }
    }
  });
  return {shard, replicate};
}

TEST(Bytes, OfMatricesOnTheirWayEqualTheFormula) {
  const TemporaryFolder folder;
  int number = 0;
  bool shared_seen = false, cut_seen = false;
  for (const MeshShape& mesh : {MeshShape{1, 1}, MeshShape{1, 2}, MeshShape{1, 3}, MeshShape{1, 4}, MeshShape{2, 1},
                                MeshShape{2, 2}, MeshShape{1, 4, 2}, MeshShape{2, 4, 2}, MeshShape{1, 8, 2}}) {
    for (const char* options : {"", "matrix_updates { share_replicas: true }"}) {
      SCOPED_TRACE(to_string(mesh) + " " + options);
      const std::string rows = mesh.ranks() == 3 ? "training { rows_per_step: 12 } " : "";
      const Job job = muon_job(folder / std::to_string(number++), model + rows + options);
      const auto [shard, replicate] = redistributed(job, mesh);
      cut_seen = cut_seen || shard > 0;
      shared_seen = shared_seen || replicate > 0;
      RunRequest request{mesh};
      request.expert_chunks = mesh.expert > 1 ? 1 : 0;
      for (const StepRecord& step : train(job, request).steps) {
        Lines lines = counted_in(step);
        EXPECT_EQ((lines[{"network", "shard", "none", "redistribute"}]), shard) << "step " << step.step();
        EXPECT_EQ((lines[{"network", "replicate", "none", "redistribute"}]), replicate) << "step " << step.step();
        EXPECT_EQ(sum_of(lines, "redistribute"), shard + replicate);
      }
    }
  }
  EXPECT_TRUE(cut_seen && shared_seen);
}

}  // namespace
}  // namespace ananke
