// Updates of whole matrices are the same bits however matrices are cut over ranks, and who transforms them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <random>

#include "runtime/base/hash.h"
#include "runtime/comm/rendezvous.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/optimizer_rules.h"
#include "runtime/engine/step_scalars.h"
#include "tests/equivalence/rank_runs.h"

namespace ananke {
namespace {

using Cuts = std::vector<std::vector<Fragment>>;  // by rank of the shard axis

// A job whose gate, up, down, query, key, value and output projections are updated by muon.
Job muon_job(const std::string& config = "lr: 0.05", const std::string& changes = "") {
  Job job = small_job("unused", changes);
  job.clear_optimizer();
  for (const auto& [match, use] : {std::pair{"_proj|mlp.gate", "muon"}, {".*", "adamw"}}) {
    OptimizerRule* rule = job.add_optimizer();
    rule->set_match(match);
    rule->set_use(use);
  }
  add_plugin(job, "muon", config);
  return job;
}

// Deterministic values of an element, near 1.
float value_of(std::uint64_t seed, const std::string& name, std::int64_t element) {
  return static_cast<float>(
      std::sin(static_cast<double>(seed * 977 + hash64(name) % 1013) + 1.7 * static_cast<double>(element)));
}

struct Updated {
  std::map<std::string, std::vector<float>> weights, states;
  std::uint64_t shard_bytes = 0, replicate_bytes = 0;  // of all ranks
};

struct Request {
  MeshShape mesh;
  Cuts cuts = {};  // empty: the placement's
  int steps = 3;
  int non_finite_step = 0;
};

void write(Device& device, Buffer& staging, const TensorView& to, const std::function<float(std::int64_t)>& value) {
  auto* values = staging.view(DType::f32, {to.elements()}).as<float>();
  for (std::int64_t i = 0; i < to.elements(); ++i) values[i] = value(i);
  device.copy(device.stream(Resource::compute), to.data, values, to.bytes());
  device.stream(Resource::compute).synchronize();
}

Cuts placed(const ParameterTable& table, const MeshShape& mesh) {
  const Placement placement(table, mesh);
  Cuts cuts;
  for (int rank = 0; rank < mesh.shard; ++rank) cuts.push_back(placement.fragments(rank));
  return cuts;
}

// One rank's fragments with memory of their own.
struct Storage {
  Storage(Device& device, const ParameterTable& table, const std::vector<Fragment>& mine) : table(table) {
    std::int64_t largest = 1;
    for (const Fragment& fragment : mine) {
      const std::size_t bytes = static_cast<std::size_t>(fragment.count) * sizeof(float);
      buffers.push_back(device.memory().allocate(bytes, "test weights"));
      buffers.push_back(device.memory().allocate(bytes, "test gradients"));
      owned.push_back({fragment, buffers.end()[-2].view(DType::f32, {fragment.count}),
                       buffers.end()[-1].view(DType::f32, {fragment.count})});
      largest = std::max(largest, fragment.count);
    }
    staging = device.host_memory().allocate(static_cast<std::size_t>(largest) * sizeof(float), "test values");
  }
  const std::string& name(const OwnedFragment& fragment) const {
    return table.parameters()[static_cast<std::size_t>(fragment.where.parameter)].name;
  }
  const ParameterTable& table;
  std::vector<Buffer> buffers;
  std::vector<OwnedFragment> owned;
  Buffer staging;
};

// Checked to be the same where another replica has been.
void collect(Device& device, const Storage& storage, const Fragment& where, const std::string& name,
             const TensorView& view, std::map<std::string, std::vector<float>>& whole) {
  std::vector<float> piece(static_cast<std::size_t>(where.count));
  device.read(view, piece.data());
  const Parameter& parameter = storage.table.parameters()[static_cast<std::size_t>(where.parameter)];
  std::vector<float>& values = whole[name];
  values.resize(static_cast<std::size_t>(parameter.shape.elements()), std::numeric_limits<float>::quiet_NaN());
  for (std::size_t i = 0; i < piece.size(); ++i) {
    float& value = values[static_cast<std::size_t>(where.begin) + i];
    EXPECT_TRUE(std::isnan(value) || value == piece[i]) << name << " differs between replicas";
    value = piece[i];
  }
}

void run_rank(const Job& job, const Request& request, const RoleContext& context, EngineRoles& roles,
              Rendezvous& rendezvous, std::mutex& mutex, Updated& result) {
  Backend& backend = *roles.backend;
  Device& device = backend.device();
  const ParameterTable table(job.model());
  const MeshCoordinates at = coordinates(context.mesh, context.rank);
  std::vector<int> everyone(static_cast<std::size_t>(context.mesh.ranks()));
  for (std::size_t i = 0; i < everyone.size(); ++i) everyone[i] = static_cast<int>(i);
  const auto world = backend.make_communicator("world", everyone, rendezvous);
  const auto shard = backend.make_communicator("shard", shard_group(context.mesh, context.rank), rendezvous);
  const auto replicate =
      backend.make_communicator("replicate", replicate_group(context.mesh, context.rank), rendezvous);

  Cuts cuts = request.cuts;
  if (cuts.empty()) cuts = placed(table, context.mesh);
  Storage storage(device, table, cuts[static_cast<std::size_t>(at.shard)]);
  const std::vector<std::string> chosen = optimizer_of_each(job, table);
  const MatrixWork work(table, chosen, roles.optimizers, cuts,
                        {.replicas = context.mesh.replicate,
                         .replica = at.replicate,
                         .rank = at.shard,
                         .bucket_bytes = std::stoull(job.matrix_updates().bucket()),
                         .resident_bytes = std::stoull(job.matrix_updates().bucket()),
                         .share_replicas = job.matrix_updates().share_replicas()});
  OptimizerStep step(table, chosen, roles.optimizers, work, backend, *shard, *replicate, storage.owned);
  StepScalars scalars(backend, *world);
  for (const OwnedFragment& f : storage.owned) {
    write(device, storage.staging, f.weight,
          [&](std::int64_t i) { return value_of(1000, storage.name(f), f.where.begin + i); });
  }
  std::uint64_t applied = 0;
  for (int k = 1; k <= request.steps; ++k) {
    const bool bad = k == request.non_finite_step;
    for (const OwnedFragment& f : storage.owned) {
      write(device, storage.staging, f.gradient, [&](std::int64_t i) {
        return bad ? std::numeric_limits<float>::quiet_NaN()
                   : value_of(static_cast<std::uint64_t>(k), storage.name(f), f.where.begin + i);
      });
    }
    scalars.begin(1, false);
    step.add_square_sum(scalars);
    scalars.agree(0);
    step.update(scalars, applied + 1, 0.5);
    applied += scalars.read().finite ? 1 : 0;
  }
  std::lock_guard lock(mutex);
  for (const OwnedFragment& f : storage.owned) {
    collect(device, storage, f.where, storage.name(f), f.weight, result.weights);
  }
  for (const OptimizerStep::State& s : step.states()) {
    collect(device, storage, s.fragment->where, storage.name(*s.fragment) + " " + s.name, s.values, result.states);
  }
  for (const TrafficLine& line : step.traffic()) {
    EXPECT_EQ(line.direction, Direction::redistribute);
    (line.axis == "shard" ? result.shard_bytes : result.replicate_bytes) += line.bytes;
  }
}

Updated run(const Job& job, const Request& request) {
  Updated result;
  std::mutex mutex;
  run_roles(job, request.mesh, [&](const RoleContext& context, EngineRoles& roles, Rendezvous& rendezvous) {
    run_rank(job, request, context, roles, rendezvous, mutex, result);
  });
  return result;
}

void expect_same_bits(const Updated& got, const Updated& wanted) {
  EXPECT_EQ(got.weights, wanted.weights);
  EXPECT_EQ(got.states, wanted.states);
}

const MeshShape meshes[] = {{1, 2}, {1, 3}, {1, 4}, {2, 2}, {3, 1}, {1, 8}, {1, 4, 2}, {2, 4, 4}, {1, 6, 3}};

TEST(MatrixUpdates, AreTheSameBitsOnEveryMesh) {
  for (const char* config :
       {"lr: 0.05", "lr: 0.05 nesterov: false adjust_lr_fn: MATCH_RMS_ADAMW per_head: \"q_proj|v_proj\""}) {
    const Job job = muon_job(config);
    const Updated one = run(job, {{1, 1}});
    EXPECT_EQ(one.shard_bytes, 0u);
    for (const MeshShape& mesh : meshes) {
      SCOPED_TRACE(to_string(mesh) + ", " + config);
      // Where experts lie is all that the expert axis changes here.
      const Updated got = run(job, {{mesh.replicate, mesh.shard}, placed(ParameterTable(job.model()), mesh)});
      expect_same_bits(got, one);
      EXPECT_EQ(got.shard_bytes > 0, mesh.shard > 1);
      EXPECT_EQ(got.replicate_bytes, 0u);
    }
  }
}

TEST(MatrixUpdates, AreTheSameBitsInRoundsOfAnySize) {
  const Updated one = run(muon_job(), {{1, 1}});
  for (const char* bucket : {"0", "4096", "20000"}) {
    const std::string changes = std::string("matrix_updates { bucket: \"") + bucket + "\" }";
    SCOPED_TRACE(changes);
    expect_same_bits(run(muon_job("lr: 0.05", changes), {{1, 1}}), one);
    expect_same_bits(run(muon_job("lr: 0.05", changes), {{1, 3}}), one);
    expect_same_bits(run(muon_job("lr: 0.05", changes), {{2, 2}}), one);
  }
}

TEST(MatrixUpdates, ThatReplicasShareAreTheSameBits) {
  const Updated one = run(muon_job(), {{1, 1}});
  for (const char* bucket : {"0", "4096", "1000000"}) {
    for (const MeshShape& mesh : {MeshShape{2, 1}, MeshShape{2, 2}, MeshShape{3, 2}, MeshShape{1, 2}}) {
      SCOPED_TRACE(to_string(mesh) + ", bucket " + bucket);
      const std::string changes = std::string("matrix_updates { share_replicas: true bucket: \"") + bucket + "\" }";
      const Updated got = run(muon_job("lr: 0.05", changes), {mesh});
      expect_same_bits(got, one);
      EXPECT_EQ(got.replicate_bytes > 0, mesh.replicate > 1);
    }
  }
}

TEST(MatrixUpdates, OfAStepThatIsNotFiniteChangeNothing) {
  for (const char* changes : {"", "matrix_updates { share_replicas: true }"}) {
    const Job job = muon_job("lr: 0.05", changes);
    const Updated two = run(job, {{1, 1}, {}, 2});
    for (const MeshShape& mesh : {MeshShape{1, 1}, MeshShape{1, 3}, MeshShape{2, 2}}) {
      for (const int bad : {1, 2, 3}) {
        SCOPED_TRACE(to_string(mesh) + ", step " + std::to_string(bad));
        if (bad == 3) expect_same_bits(run(job, {mesh, {}, 3, bad}), two);
        const Updated skipped = run(job, {mesh, {}, 3, bad});
        for (const auto* all : {&skipped.weights, &skipped.states}) {
          for (const auto& [name, values] : *all) {
            EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) << name;
          }
        }
      }
    }
  }
}

// A model of one layer whose query, key and value projections are 4 x 3.
Job four_by_three(const std::string& config, int heads) {
  Job job = muon_job(config);
  Model& model = *job.mutable_model();
  model.set_hidden_size(3);
  model.set_num_hidden_layers(1);
  model.set_head_dim(4);
  model.set_num_attention_heads(static_cast<std::uint32_t>(heads));
  model.set_num_key_value_heads(1);
  model.set_decoder_sparse_step(2);
  return job;
}

// Gives each of the parameters `cut`, as if they lay one behind the other, to two ranks in halves; all others to rank
// 0.
Cuts halves_of(const ParameterTable& table, const std::vector<std::string>& cut) {
  std::int64_t total = 0, at = 0;
  const auto is_cut = [&](const Parameter& p) {
    return std::any_of(cut.begin(), cut.end(), [&](auto& name) { return p.name.find(name) != std::string::npos; });
  };
  for (const Parameter& p : table.parameters()) total += is_cut(p) ? p.shape.elements() : 0;
  Cuts cuts(2);
  for (int i = 0; i < static_cast<int>(table.parameters().size()); ++i) {
    const Parameter& p = table.parameters()[static_cast<std::size_t>(i)];
    const std::int64_t size = p.shape.elements();
    const std::int64_t first = is_cut(p) ? std::clamp<std::int64_t>(total / 2 - at, 0, size) : size;
    at += is_cut(p) ? size : 0;
    if (first > 0) cuts[0].push_back({i, p.unit, 0, first, 0});
    if (first < size) cuts[1].push_back({i, p.unit, first, size - first, 0});
  }
  return cuts;
}

// Three matrices 4 x 3 stored as two shards of 6 rows: the boundary goes through the middle of the second one.
TEST(MatrixUpdates, OfThreeMatricesInTwoShardsOfSixRowsAreTheSameBits) {
  for (const auto& [job, cut] :
       {std::pair{four_by_three("lr: 0.05", 1), std::vector<std::string>{"q_proj", "k_proj", "v_proj"}},
        std::pair{four_by_three("lr: 0.05 per_head: \"q_proj\"", 3), std::vector<std::string>{"q_proj"}}}) {
    const ParameterTable table(job.model());
    const Updated one = run(job, {{1, 1}}), two = run(job, {{1, 2}, halves_of(table, cut)});
    expect_same_bits(two, one);
    EXPECT_GT(two.shard_bytes, 0u);
    // Of one matrix, 6 elements each way, three steps; the other ranks' matrices never leave them.
    EXPECT_EQ(two.shard_bytes, 3u * 2 * 6 * sizeof(float));
  }
}

// Cuts anywhere, ranks that own nothing, an expert over many ranks, more ranks than matrices.
TEST(MatrixUpdates, OfRandomCutsAreTheSameBits) {
  std::mt19937 engine(3);
  for (int i = 0; i < 12; ++i) {
    Job job = muon_job("lr: 0.05", i % 2 ? "matrix_updates { share_replicas: true bucket: \"2000\" }"
                                         : "model { num_hidden_layers: 1 num_experts: 2 decoder_sparse_step: 1 }");
    const ParameterTable table(job.model());
    const MeshShape mesh{1 + static_cast<int>(engine() % 2), 2 + static_cast<int>(engine() % 5)};
    Cuts cuts(static_cast<std::size_t>(mesh.shard));
    const std::size_t owners = 1 + engine() % cuts.size();
    for (int p = 0; p < static_cast<int>(table.parameters().size()); ++p) {
      const Parameter& parameter = table.parameters()[static_cast<std::size_t>(p)];
      for (std::int64_t begin = 0; begin < parameter.shape.elements();) {
        const auto left = static_cast<unsigned>(parameter.shape.elements() - begin);
        const std::int64_t count = engine() % 2 ? left : 1 + engine() % left;
        cuts[engine() % owners].push_back({p, parameter.unit, begin, count, 0});
        begin += count;
      }
    }
    SCOPED_TRACE(to_string(mesh) + ", case " + std::to_string(i));
    expect_same_bits(run(job, {mesh, cuts}), run(job, {{1, 1}}));
  }
}

}  // namespace
}  // namespace ananke
