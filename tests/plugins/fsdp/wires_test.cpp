// fsdp with weights and gradients in fewer bits while they travel, and with a second copy inside the node.
#include <array>

#include "runtime/base/random.h"
#include "tests/plugins/fsdp/fsdp_world.h"

namespace ananke::testing {
namespace {

using plugin::Fsdp;

Fsdp wires(Fsdp::Gather dense, Fsdp::Gather experts, Fsdp::Reduce reduce, bool node_copy = false) {
  Fsdp config = fsdp_config(true, 1, 1);
  config.set_gather_dense(dense);
  config.set_gather_experts(experts);
  config.set_reduce_dense(reduce);
  config.set_reduce_experts(reduce);
  config.set_node_copy(node_copy);
  return config;
}

std::vector<Fsdp> all_wires() {
  return {wires(Fsdp::BF16, Fsdp::FP8_E4M3, Fsdp::BF16_ALL_TO_ALL),
          wires(Fsdp::FP8_E4M3, Fsdp::BF16, Fsdp::FP32_REDUCE_SCATTER),
          wires(Fsdp::FP8_E4M3, Fsdp::FP8_E4M3, Fsdp::BF16_ALL_TO_ALL, true),
          wires(Fsdp::FP32, Fsdp::FP32, Fsdp::FP32_REDUCE_SCATTER, true)};
}

// Ranks of the shard axis on one node: the largest divisor below all of them, if there is one.
int node_of(const MeshShape& mesh) {
  for (int ranks = mesh.shard - 1; ranks > 1; --ranks) {
    if (mesh.shard % ranks == 0) return ranks;
  }
  return mesh.shard;
}

std::vector<SmallModel> models() {
  return {{.layers = 5, .experts = 5, .hidden = 12},
          {.layers = 4, .experts = 3, .hidden = 7, .width = 3, .sparse_step = 2, .tied = true}};
}

TEST(FsdpMisuse, ANodeCopyWithoutASecondGatherIsRefused) {
  Fsdp config = fsdp_config(false, 1);
  config.set_node_copy(true);
  try {
    make_fsdp(config, {1, 2}, 0);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_NE(std::string(error.what()).find("reshard_after_forward"), std::string::npos) << error.what();
  }
}

void train_and_evaluate(Rank& rank) {
  const Schedule schedule = training_schedule(rank.table, 4, 2);
  rank.run(schedule);
  rank.expect_sums(schedule);
  rank.write_weights();
  rank.run(evaluation_schedule(rank.table));
}

// Every use sees the weight rounded as its wire rounds it, or better; gradients are exact in bf16, so owners have plain
// sums.
TEST(FsdpWires, EveryItemSeesRoundedWeightsAndOwnersGetPlainSums) {
  for (const SmallModel& model : models()) {
    for (const MeshShape& mesh : {MeshShape{1, 1}, {1, 3}, {2, 4}, {1, 4, 2}, {1, 6, 3}}) {
      for (const Eager eager : {Eager::compute, Eager::network, Eager::nvlink}) {
        for (const Fsdp& config : all_wires()) {
          SCOPED_TRACE(fmt::format("{}, {} experts, {}", to_string(mesh), model.experts, config.ShortDebugString()));
          in_world({model, mesh, config, eager, node_of(mesh)}, train_and_evaluate);
        }
      }
    }
  }
}

// The same calls and sums but that gradients come out of the other ranks' memory, in one call.
TEST(FsdpWires, OwnersGetTheSameSumsOutOfSharedMemory) {
  for (const DType stored : {DType::f32, DType::bf16}) {
    for (const MeshShape& mesh : {MeshShape{1, 3}, {2, 4}, {1, 4, 2}}) {
      for (const Eager eager : {Eager::compute, Eager::network}) {
        SCOPED_TRACE(fmt::format("{}, stored in {}", to_string(mesh), name_of(stored)));
        const Fsdp config = wires(Fsdp::BF16, Fsdp::BF16, Fsdp::BF16_ALL_TO_ALL);
        WorldShape shape{models()[0], mesh, config, eager, node_of(mesh), stored, stored};
        std::map<int, decltype(Rank::gradients)> apart, shared;  // by rank
        const auto run = [&](auto& sums) {
          std::mutex mutex;
          return in_world(shape, [&](Rank& rank) {
            rank.run(training_schedule(rank.table, 4, 2));
            std::lock_guard lock(mutex);
            sums[rank.rank] = rank.gradients;
          });
        };
        const auto calls_apart = run(apart);
        shape.shared_memory = true;
        auto calls = run(shared);
        int parts = 0;
        for (auto& log : calls) {
          for (std::string& call : log) {
            const std::size_t at = call.find("parts ");
            if (at == std::string::npos) continue;
            ++parts;
            call.replace(at, 5, "exchange");
          }
        }
        EXPECT_GT(parts, 0);
        EXPECT_EQ(calls, calls_apart);
        EXPECT_EQ(shared, apart);
      }
    }
  }
}

// The same where weights are computed with in bf16: also those that are whole on their owner, and those that travel as
// f32, are rounded; the small segments are not. A config without any narrow wire among them.
TEST(FsdpWires, EveryItemSeesBf16WeightsWhereItComputesInThem) {
  const Fsdp configs[] = {wires(Fsdp::FP32, Fsdp::FP32, Fsdp::FP32_REDUCE_SCATTER),
                          wires(Fsdp::BF16, Fsdp::FP8_E4M3, Fsdp::FP32_REDUCE_SCATTER),
                          wires(Fsdp::BF16, Fsdp::BF16, Fsdp::BF16_ALL_TO_ALL, true),
                          wires(Fsdp::FP8_E4M3, Fsdp::FP32, Fsdp::FP32_REDUCE_SCATTER, true)};
  for (const SmallModel& model : models()) {
    for (const MeshShape& mesh : {MeshShape{1, 1}, {1, 3}, {1, 4, 2}, {1, 4, 4}}) {
      for (const Eager eager : {Eager::compute, Eager::network}) {
        for (const Fsdp& config : configs) {
          SCOPED_TRACE(fmt::format("{}, {} experts, {}", to_string(mesh), model.experts, config.ShortDebugString()));
          in_world({model, mesh, config, eager, node_of(mesh), DType::bf16}, train_and_evaluate);
        }
      }
    }
  }
}

void expect_planned(const MeshShape& mesh, const Fsdp& config, DType compute) {
  in_world({models()[0], mesh, config, Eager::compute, node_of(mesh), compute}, [](Rank& rank) {
    std::map<std::string, std::uint64_t> planned, used;
    for (const PlanLine& line : rank.fsdp->plan(rank.table, rank.placement)) {
      if (line.lifetime == Lifetime::run) planned[line.purpose] += line.bytes;
    }
    for (const Arena::Line& line : rank.backend.device().memory().ledger()) used[line.purpose] += line.bytes;
    EXPECT_EQ(planned, used) << to_string(rank.shape.mesh) << ' ' << rank.shape.config.ShortDebugString();
  });
}

TEST(FsdpWires, PlanIsWhatTheLedgerShows) {
  for (const MeshShape& mesh : {MeshShape{1, 1}, {1, 4}, {2, 4, 2}}) {
    for (const Fsdp& config : all_wires()) {
      for (const DType compute : {DType::f32, DType::bf16}) expect_planned(mesh, config, compute);
    }
  }
}

// In bf16 the gathered weights take half, up to what is f32 whatever the wire; and bf16 lands where it is used.
TEST(FsdpWires, Bf16WeightsTakeHalfTheSlotsAndLandInThem) {
  const SmallModel model{.layers = 4, .experts = 4, .hidden = 64, .width = 64};
  std::map<DType, std::map<std::string, double>> planned;
  for (const DType compute : {DType::f32, DType::bf16}) {
    in_world({model, {1, 2}, wires(Fsdp::BF16, Fsdp::BF16, Fsdp::FP32_REDUCE_SCATTER), Eager::compute, 1, compute},
             [&](Rank& rank) {
               if (rank.rank != 0) return;
               for (const PlanLine& line : rank.fsdp->plan(rank.table, rank.placement)) {
                 planned[compute][line.purpose] += static_cast<double>(line.bytes);
               }
             });
  }
  EXPECT_NEAR(planned[DType::bf16]["gather slots"] / planned[DType::f32]["gather slots"], 0.5, 0.02);
  EXPECT_NEAR(planned[DType::bf16]["gather wire"] / planned[DType::f32]["gather wire"], 1.0 / 3, 0.02);
}

std::map<std::pair<std::string, UnitKind>, std::uint64_t> count(const Rank& rank, Direction direction) {
  std::map<std::pair<std::string, UnitKind>, std::uint64_t> bytes;
  for (const TrafficLine& line : rank.fsdp->traffic()) {
    if (line.direction != direction) continue;
    bytes[{line.axis, rank.table.units()[static_cast<std::size_t>(line.unit)].kind}] += line.bytes;
  }
  return bytes;
}

// Experts of whole blocks, so that the formula is short: a byte an element and one scale per 128 x 128 block against
// two bytes; and two against four for gradients.
TEST(FsdpWires, ExpertsMoveHalfTheBytesInFp8AndBf16) {
  const SmallModel model{.layers = 1, .experts = 4, .hidden = 128, .vocabulary = 8, .width = 128};
  const auto traffic = [&](const Fsdp& config, Direction direction) {
    std::uint64_t bytes = 0;
    in_world({model, {1, 2}, config}, [&](Rank& rank) {
      rank.run(training_schedule(rank.table, 1, LoopOrder::microbatch_outer));
      if (rank.rank == 0) bytes = count(rank, direction)[{"expert_shard", UnitKind::experts}];
    });
    return bytes;
  };
  const Fsdp narrow = wires(Fsdp::BF16, Fsdp::FP8_E4M3, Fsdp::BF16_ALL_TO_ALL);
  const Fsdp wide = wires(Fsdp::BF16, Fsdp::BF16, Fsdp::FP32_REDUCE_SCATTER);
  constexpr std::uint64_t elements = 2 * 3 * 128 * 128;  // of the other rank's two experts
  const std::uint64_t gathers = traffic(wide, Direction::gather) / (2 * elements);
  EXPECT_EQ(traffic(wide, Direction::gather), gathers * 2 * elements);
  EXPECT_EQ(traffic(narrow, Direction::gather), gathers * (elements + 16));  // six scales, made up to 16
  EXPECT_EQ(traffic(wide, Direction::reduce), 4 * elements);
  EXPECT_EQ(traffic(narrow, Direction::reduce), 2 * elements);
}

// Of a dense unit only the first gather of a step crosses the network; the second brings the other slices of the node.
TEST(FsdpWires, ANodeCopyKeepsTheSecondGatherInsideTheNode) {
  const SmallModel model{.layers = 6, .experts = 2, .hidden = 16};
  std::map<bool, std::map<std::pair<std::string, UnitKind>, std::uint64_t>> bytes;
  for (const bool copy : {false, true}) {
    Fsdp config = wires(Fsdp::BF16, Fsdp::BF16, Fsdp::FP32_REDUCE_SCATTER, copy);
    config.set_prefetch_blocks(0);
    in_world({model, {1, 4}, config, Eager::network, 2}, [&](Rank& rank) {
      for (int step = 0; step < 2; ++step) {
        rank.run(training_schedule(rank.table, 1, LoopOrder::microbatch_outer));
        rank.write_weights();
      }
      if (rank.rank == 0) bytes[copy] = count(rank, Direction::gather);
    });
  }
  const std::uint64_t twice = bytes[false][{"shard", UnitKind::dense}], once = bytes[true][{"shard", UnitKind::dense}];
  EXPECT_EQ(once * 2, twice);
  const std::uint64_t inside = bytes[true][{"node", UnitKind::dense}];
  EXPECT_NEAR(static_cast<double>(inside), static_cast<double>(once) / 3 * 2, static_cast<double>(once) / 20);
  EXPECT_EQ(bytes[true].count({"node", UnitKind::experts}), 0u);
  EXPECT_EQ((bytes[true][{"expert_shard", UnitKind::experts}]), (bytes[false][{"expert_shard", UnitKind::experts}]));
}

// A copy in the node serves all groups of microbatches after the first gather.
TEST(FsdpWires, ANodeCopyServesEveryGroupOfMicrobatches) {
  const SmallModel model{.layers = 6, .experts = 0, .hidden = 16, .vocabulary = 99};
  std::map<int, std::uint64_t> over_network, inside;
  for (const int per_gather : {1, 2, 4}) {
    Fsdp config = wires(Fsdp::BF16, Fsdp::BF16, Fsdp::FP32_REDUCE_SCATTER, true);
    config.set_prefetch_blocks(0);
    in_world({model, {1, 4}, config, Eager::network, 2}, [&](Rank& rank) {
      const Schedule schedule = training_schedule(rank.table, 4, per_gather);
      rank.run(schedule);
      rank.expect_sums(schedule);
      if (rank.rank != 0) return;
      over_network[per_gather] = count(rank, Direction::gather)[{"shard", UnitKind::dense}];
      inside[per_gather] = count(rank, Direction::gather)[{"node", UnitKind::dense}];
    });
  }
  EXPECT_EQ(over_network[1], over_network[4]);
  EXPECT_EQ(over_network[2], over_network[4]);
  EXPECT_GT(inside[2], inside[4]);
  EXPECT_GT(inside[1], inside[2]);
}

// The sum is the same bits however it is cut, and in rank order: 1 + 2^-9 + 2^-9 in bf16 would lose what f32 keeps.
TEST(FsdpWires, ChunksDoNotChangeTheSum) {
  const SmallModel model{.layers = 2, .experts = 0, .hidden = 256, .vocabulary = 3000, .width = 8};
  std::vector<std::vector<std::vector<float>>> results;
  for (const unsigned mib : {1u, 64u}) {
    Fsdp config = wires(Fsdp::FP32, Fsdp::FP32, Fsdp::BF16_ALL_TO_ALL);
    config.set_reduce_chunk_mib(mib);
    const auto logs = in_world({model, {1, 2}, config}, [&](Rank& rank) {
      rank.run(training_schedule(rank.table, 1, LoopOrder::microbatch_outer));
      if (rank.rank == 0) results.push_back(rank.gradients);
    });
    const auto exchanges = std::ranges::count_if(logs[0], [](auto& line) { return line.starts_with("exchange"); });
    EXPECT_EQ(exchanges > 4, mib == 1) << exchanges;
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(FsdpMisuse, AnFp8WireOfWeightsInBf16IsRefused) {
  const Fsdp config = wires(Fsdp::FP8_E4M3, Fsdp::BF16, Fsdp::FP32_REDUCE_SCATTER);
  try {
    make_fsdp(config, {1, 2}, 0, 1, DType::bf16, DType::bf16);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_NE(std::string(error.what()).find("gather_dense is FP8_E4M3"), std::string::npos) << error.what();
  }
}

// Where owners store bf16: items see what they store, and sums, which stay below 256 here, are exact in it. A chunk
// limit of 0 cuts what is sent and what replicas sum into as many pieces as there can be.
TEST(FsdpStoredWeights, EveryItemSeesWhatIsStoredAndOwnersGetPlainSums) {
  std::vector<Fsdp> configs = {wires(Fsdp::FP32, Fsdp::FP32, Fsdp::FP32_REDUCE_SCATTER),
                               wires(Fsdp::BF16, Fsdp::FP32, Fsdp::BF16_ALL_TO_ALL),
                               wires(Fsdp::BF16, Fsdp::BF16, Fsdp::FP32_REDUCE_SCATTER, true)};
  configs.push_back(configs[1]);
  configs.back().set_reduce_chunk_mib(0);
  const SmallModel untied{.layers = 5, .experts = 5, .hidden = 12};
  const SmallModel tied{.layers = 4, .experts = 3, .hidden = 7, .width = 3, .sparse_step = 2, .tied = true};
  const std::pair<SmallModel, MeshShape> worlds[] = {{untied, {1, 1}}, {untied, {1, 3}},    {untied, {2, 2}},
                                                     {untied, {4, 1}}, {untied, {1, 4, 2}}, {tied, {1, 2}},
                                                     {tied, {2, 1}}};
  int world = 0;
  for (const auto& [model, mesh] : worlds) {
    for (const Fsdp& config : configs) {
      const Eager eager =
          std::array{Eager::compute, Eager::network, Eager::nvlink}[static_cast<std::size_t>(world % 3)];
      const int together = 1 + world++ % 2;
      SCOPED_TRACE(fmt::format("{}, {} experts, {}, {} microbatches together", to_string(mesh), model.experts,
                               config.ShortDebugString(), together));
      in_world({model, mesh, config, eager, node_of(mesh), DType::bf16, DType::bf16}, [&](Rank& rank) {
        for (const OwnedFragment& f : rank.fsdp->fragments()) {
          const ParameterKind kind = rank.table.parameters()[static_cast<std::size_t>(f.where.parameter)].kind;
          const DType type = segment_of(kind) == UnitSegment::wire ? DType::bf16 : DType::f32;
          EXPECT_TRUE(f.weight.dtype == type && f.gradient.dtype == type);
        }
        for (int step = 0; step < 2; ++step) {  // the second finds gradients that it must replace
          const Schedule schedule = training_schedule(rank.table, 2, together);
          rank.run(schedule);
          rank.expect_sums(schedule);
          rank.write_weights();
        }
        rank.run(evaluation_schedule(rank.table));
      });
    }
  }
}

}  // namespace
}  // namespace ananke::testing
