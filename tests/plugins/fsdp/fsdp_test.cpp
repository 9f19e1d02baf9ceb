#include <gtest/gtest.h>

#include <mutex>
#include <numeric>

#include "tests/plugins/fsdp/fsdp_world.h"

namespace ananke::testing {
namespace {

// One rank without peers is enough for misuse.
const WorldShape alone{.model = {.layers = 6}, .mesh = {1, 1}, .config = fsdp_config(true, 0)};

// Runs `body` on every rank of a mesh of two, where no collective has to complete.
template <class Body>
void on_two_ranks(Body body) {
  in_world({.model = {.layers = 6}, .mesh = {1, 2}, .config = fsdp_config(true, 0)}, body);
}

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(FsdpMisuse, CallsOutsideAScheduleAreRefused) {
  in_world(alone, [](Rank& rank) {
    EXPECT_NE(error_of([&] { rank.fsdp->acquire(0, 0); }).find("outside begin() and finish()"), std::string::npos);
    EXPECT_NE(error_of([&] { rank.fsdp->finish(); }).find("without begin()"), std::string::npos);
    const Schedule schedule = evaluation_schedule(rank.table);
    rank.fsdp->begin(schedule);
    EXPECT_NE(error_of([&] { rank.fsdp->begin(schedule); }).find("before finish()"), std::string::npos);
    EXPECT_NE(error_of([&] { rank.fsdp->updated(); }).find("middle of a schedule"), std::string::npos);
    EXPECT_NE(error_of([&] { rank.fsdp->acquire(99, 0); }).find("item 99 of a schedule of 8"), std::string::npos);
    EXPECT_NE(error_of([&] { rank.fsdp->acquire(0, 3); }).find("does not use unit 3"), std::string::npos);
    EXPECT_NE(error_of([&] { rank.fsdp->reduce(0, 0); }).find("forward only"), std::string::npos);
    rank.fsdp->finish();
  });
}

TEST(FsdpMisuse, AUnitThatIsNeverReleasedGivesAnErrorNotAHang) {
  on_two_ranks([](Rank& rank) {
    const Schedule schedule = evaluation_schedule(rank.table);
    rank.fsdp->begin(schedule);
    const std::string error = error_of([&] {
      for (int i = 0; i < static_cast<int>(schedule.size()); ++i) {
        for (const UnitUse& use : schedule[i].units) rank.fsdp->acquire(i, use.unit);
      }
    });
    EXPECT_NE(error.find("which an earlier item has not released"), std::string::npos) << error;
  });
}

TEST(FsdpMisuse, ReleasingTwiceOrWhatIsNotHeldIsRefused) {
  on_two_ranks([](Rank& rank) {
    const Schedule schedule = evaluation_schedule(rank.table);
    rank.fsdp->begin(schedule);
    rank.fsdp->acquire(0, 0);
    rank.fsdp->release(0, 0);
    EXPECT_NE(error_of([&] { rank.fsdp->release(0, 0); }).find("which it does not hold"), std::string::npos);
    EXPECT_NE(error_of([&] { rank.fsdp->release(3, schedule[3].units[0].unit); }).find("which it does not hold"),
              std::string::npos);
    EXPECT_NE(error_of([&] { rank.fsdp->finish(); }).find("released"), std::string::npos);
  });
}

TEST(FsdpMisuse, AGradientThatIsNotReducedIsNamed) {
  on_two_ranks([](Rank& rank) {
    const Schedule schedule = training_schedule(rank.table, 1, LoopOrder::microbatch_outer);
    rank.fsdp->begin(schedule);
    const std::string error = error_of([&] {
      for (int i = 0; i < static_cast<int>(schedule.size()); ++i) {
        for (const UnitUse& use : schedule[i].units) rank.fsdp->acquire(i, use.unit);
        for (const UnitUse& use : schedule[i].units) rank.fsdp->release(i, use.unit);
      }
      rank.fsdp->finish();
    });
    EXPECT_NE(error.find("not reduced"), std::string::npos) << error;
  });
}

std::vector<MeshShape> meshes() {
  return {{1, 1}, {2, 1},    {1, 2},    {1, 3},    {2, 2},    {1, 7},
          {3, 2}, {1, 2, 2}, {2, 2, 2}, {1, 4, 2}, {1, 6, 3}, {1, 8, 8}};
}

// What a rank issued on the axes of dense units.
std::vector<std::string> without_experts(std::vector<std::string> log) {
  std::erase_if(log, [](const std::string& line) { return line.starts_with("experts: "); });
  return log;
}

// All ranks issue the same on the dense axes, and those of one expert coordinate the same altogether.
void expect_agreement(const std::vector<std::vector<std::string>>& logs, const MeshShape& mesh) {
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    EXPECT_EQ(logs[rank], logs[coordinates(mesh, rank).expert]) << "ranks issue different collectives";
    if (mesh.replicate == 1) {  // sums over replicas name their sizes, which experts' own differ in
      EXPECT_EQ(without_experts(logs[rank]), without_experts(logs[0]));
    }
  }
}

std::vector<SmallModel> models() {
  return {{.layers = 5, .experts = 5},
          {.layers = 4, .experts = 3, .hidden = 7, .width = 3, .sparse_step = 2, .tied = true},
          {.layers = 3, .experts = 0, .hidden = 4, .vocabulary = 2, .width = 1}};  // ranks with padding only
}

// Weights as placed and gradients as plain sums, for every mesh, model, order of work and reservation: uneven sizes,
// more ranks than experts, ranks that own only padding, a tied unit.
TEST(Fsdp, EveryItemSeesThePlacedWeightsAndOwnersGetPlainSums) {
  for (const SmallModel& model : models()) {
    for (const MeshShape& mesh : meshes()) {
      for (const Eager eager : {Eager::compute, Eager::network}) {
        for (const auto& [reshard, prefetch, reduce] : {std::tuple{true, 0u, 0u},
                                                        {true, 1u, 2u},
                                                        {true, 2u, 1u},
                                                        {true, 4000000000u, 4000000000u},
                                                        {false, 2u, 1u}}) {
          if (mesh.expert > 1 && (!reshard || prefetch > 1)) continue;  // the tightest reservations are enough there
          const WorldShape shape{model, mesh, fsdp_config(reshard, prefetch, reduce), eager};
          SCOPED_TRACE(
              fmt::format("{}, {} experts, {}", to_string(mesh), model.experts, shape.config.ShortDebugString()));
          const auto logs = in_world(shape, [](Rank& rank) {
            for (const auto& [microbatches, per_gather] : {std::pair{2, 1}, {4, 2}}) {
              const Schedule schedule = training_schedule(rank.table, microbatches, per_gather);
              rank.run(schedule);
              rank.expect_sums(schedule);
              rank.write_weights();
              rank.run(evaluation_schedule(rank.table));
            }
          });
          expect_agreement(logs, mesh);
        }
      }
    }
  }
}

TEST(Fsdp, EvaluationLeavesTheGradientsOfTheStepAlone) {
  in_world({.model = {}, .mesh = {1, 2}, .config = {}}, [](Rank& rank) {
    const Schedule schedule = training_schedule(rank.table, 1, LoopOrder::microbatch_outer);
    rank.run(schedule);
    rank.run(evaluation_schedule(rank.table));  // looks at the gradients again when it is done
    rank.expect_sums(schedule);
  });
}

// Of experts only, and whenever no item has made a gradient that is still there: what lay in the memory is gone.
TEST(Fsdp, GradientsOfExpertsAreWrittenByTheirFirstItem) {
  for (const MeshShape& mesh : {MeshShape{1, 1}, MeshShape{1, 2}}) {
    for (const LoopOrder order : {LoopOrder::microbatch_outer, LoopOrder::layer_outer}) {
      in_world({.model = {.layers = 3}, .mesh = mesh, .config = {}}, [&](Rank& rank) {
        const Schedule schedule = training_schedule(rank.table, 2, order);
        for (int step = 0; step < 2; ++step) {
          rank.fsdp->begin(schedule);
          for (int i = 0; i < static_cast<int>(schedule.size()); ++i) {
            const Item& item = schedule[static_cast<std::size_t>(i)];
            for (const UnitUse& use : item.units) {
              const UnitViews views = rank.fsdp->acquire(i, use.unit);
              const bool experts = rank.table.units()[static_cast<std::size_t>(use.unit)].kind == UnitKind::experts;
              const bool reduced_before = mesh.ranks() > 1 && order == LoopOrder::microbatch_outer;
              EXPECT_EQ(views.write_gradient,
                        experts && item.phase != Phase::forward && (use.first_gradient || reduced_before))
                  << to_string(mesh) << " item " << i << " unit " << use.unit;
            }
            for (const UnitUse& use : item.units) {
              if (item.phase != Phase::forward) rank.fsdp->reduce(i, use.unit);
              rank.fsdp->release(i, use.unit);
            }
          }
          rank.fsdp->finish();
        }
        rank.compute().synchronize();
      });
    }
  }
}

TEST(Fsdp, ReplicasHaveBitEqualGradients) {
  const WorldShape shape{.model = {.layers = 2}, .mesh = {3, 2}, .config = {}};
  std::mutex guard;
  std::map<int, std::vector<std::vector<float>>> owned;  // by shard coordinate: every replica's gradients
  in_world(shape, [&](Rank& rank) {
    const Schedule schedule = training_schedule(rank.table, 2, LoopOrder::microbatch_outer);
    rank.fsdp->begin(schedule);
    for (int i = 0; i < static_cast<int>(schedule.size()); ++i) {
      for (const UnitUse& use : schedule[i].units) {
        const UnitViews views = rank.fsdp->acquire(i, use.unit);
        if (schedule[i].phase == Phase::forward) continue;
        rank.compute().put([=, &rank] {  // sums of these round
          for (const TensorView& gradient : views.gradient.segments) {
            for (std::int64_t e = 0; e < gradient.elements(); ++e) {
              float& sum = gradient.as<float>()[e];
              const float more = 1.0f / static_cast<float>(3 + rank.rank * 7 + i * 5 + e % 97);
              sum = views.write_gradient ? more : sum + more;
            }
          }
        });
      }
      for (const UnitUse& use : schedule[i].units) {
        if (schedule[i].phase != Phase::forward) rank.fsdp->reduce(i, use.unit);
        rank.fsdp->release(i, use.unit);
      }
    }
    rank.fsdp->finish();
    rank.compute().synchronize();
    std::vector<float> mine;
    for (const OwnedFragment& f : rank.fsdp->fragments()) {
      mine.insert(mine.end(), f.gradient.as<float>(), f.gradient.as<float>() + f.where.count);
    }
    std::lock_guard lock(guard);
    owned[coordinates(shape.mesh, rank.rank).shard].push_back(std::move(mine));
  });
  ASSERT_EQ(owned.size(), 2u);
  for (const auto& [shard, replicas] : owned) {
    ASSERT_EQ(replicas.size(), 3u);
    for (const auto& replica : replicas) {
      ASSERT_EQ(replica.size(), replicas[0].size());
      EXPECT_EQ(std::memcmp(replica.data(), replicas[0].data(), replica.size() * sizeof(float)), 0)
          << "shard " << shard;
    }
  }
}

TEST(Fsdp, OneRankComputesInTheMasterCopyItself) {
  in_world(alone, [](Rank& rank) {
    const Schedule schedule = training_schedule(rank.table, 2, LoopOrder::microbatch_outer);
    rank.fsdp->begin(schedule);
    const UnitViews views = rank.fsdp->acquire(0, 0);
    EXPECT_EQ(views.weights[UnitSegment::wire].data, rank.fsdp->fragments()[0].weight.data);
    for (int i = 0; i < static_cast<int>(schedule.size()); ++i) rank.run_item(schedule, i);
    rank.fsdp->finish();
    rank.compute().synchronize();
    EXPECT_EQ(bytes_of(rank.fsdp->traffic(), Direction::gather) + bytes_of(rank.fsdp->traffic(), Direction::reduce),
              0u);
    EXPECT_TRUE(rank.log.empty());
  });
}

TEST(Fsdp, PlanIsWhatTheLedgerShows) {
  for (const MeshShape& mesh : meshes()) {
    for (const bool reshard : {true, false}) {
      const WorldShape shape{.model = {.layers = 5, .tied = true}, .mesh = mesh, .config = fsdp_config(reshard, 1)};
      in_world(shape, [](Rank& rank) {
        std::map<std::string, std::uint64_t> planned, used;
        for (const PlanLine& line : rank.fsdp->plan(rank.table, rank.placement)) {
          if (line.lifetime == Lifetime::run) planned[line.purpose] += line.bytes;
        }
        for (const Arena::Line& line : rank.backend.device().memory().ledger()) used[line.purpose] += line.bytes;
        EXPECT_EQ(planned, used);
        const std::uint64_t peak = rank.backend.device().memory().peak();
        rank.run(training_schedule(rank.table, 2, LoopOrder::layer_outer));
        EXPECT_EQ(rank.backend.device().memory().peak(), peak) << "a step allocates";
        EXPECT_EQ(planned.count("gather slots"), rank.shape.mesh.shard > 1 ? 1u : 0u);
      });
    }
  }
}

// Sum of ranges of the units of blocks [first, last), f32 bytes a gather of them brings from `size - 1` peers.
std::uint64_t bytes_of_blocks(const Rank& rank, int first, int last) {
  std::int64_t elements = 0;
  for (int b = first; b < last; ++b) {
    for (const int unit : rank.table.blocks()[b].units) elements += rank.placement.unit(unit).range();
  }
  return static_cast<std::uint64_t>(elements) * 4 * static_cast<std::uint64_t>(rank.shape.mesh.shard - 1);
}

TEST(Fsdp, KeepingWeightsGathersEachUnitOncePerStep) {
  in_world({.model = {.layers = 6}, .mesh = {1, 2}, .config = fsdp_config(false, 2)}, [](Rank& rank) {
    const std::uint64_t model = bytes_of_blocks(rank, 0, 8);
    for (std::uint64_t step = 1; step <= 3; ++step) {
      rank.run(training_schedule(rank.table, 2, LoopOrder::microbatch_outer));
      EXPECT_EQ(bytes_of(rank.fsdp->traffic(), Direction::gather), step * model);
      rank.write_weights();
    }
  });
}

TEST(Fsdp, FreeingWeightsGathersAgainForBackwardExceptTheEmbedding) {
  in_world({.model = {.layers = 6, .vocabulary = 99}, .mesh = {1, 3}, .config = fsdp_config(true, 0)}, [](Rank& rank) {
    rank.run(training_schedule(rank.table, 1, LoopOrder::microbatch_outer));
    // Once all; once more the layers; the head is forward and backward in one. With room for one block the last layer
    // had to make way for the head.
    EXPECT_EQ(bytes_of(rank.fsdp->traffic(), Direction::gather),
              bytes_of_blocks(rank, 0, 8) + bytes_of_blocks(rank, 1, 7));
    EXPECT_EQ(bytes_of(rank.fsdp->traffic(), Direction::reduce), bytes_of_blocks(rank, 0, 8));
  });
}

TEST(Fsdp, LayerOuterGathersAndReducesOncePerPass) {
  in_world({.model = {.layers = 6, .vocabulary = 99}, .mesh = {1, 2}, .config = fsdp_config(true, 0)}, [](Rank& rank) {
    rank.run(training_schedule(rank.table, 5, LoopOrder::layer_outer));
    EXPECT_EQ(bytes_of(rank.fsdp->traffic(), Direction::gather),
              bytes_of_blocks(rank, 0, 8) + bytes_of_blocks(rank, 1, 7));
    EXPECT_EQ(bytes_of(rank.fsdp->traffic(), Direction::reduce), bytes_of_blocks(rank, 0, 8));
    const std::uint64_t gathered = bytes_of(rank.fsdp->traffic(), Direction::gather);
    rank.write_weights();
    rank.run(training_schedule(rank.table, 5, LoopOrder::microbatch_outer));
    EXPECT_EQ(bytes_of(rank.fsdp->traffic(), Direction::reduce), 6 * bytes_of_blocks(rank, 0, 8));
    EXPECT_GT(bytes_of(rank.fsdp->traffic(), Direction::gather) - gathered, 4 * gathered);
  });
}

TEST(Fsdp, GatherAndReduceOncePerGroupOfMicrobatches) {
  for (const int per_gather : {1, 2, 3, 6}) {
    in_world({.model = {.layers = 6, .vocabulary = 99}, .mesh = {1, 2}, .config = fsdp_config(true, 0)},
             [&](Rank& rank) {
               const auto groups = static_cast<std::uint64_t>(6 / per_gather);
               const Schedule schedule = training_schedule(rank.table, 6, per_gather);
               rank.run(schedule);
               rank.expect_sums(schedule);
               EXPECT_EQ(bytes_of(rank.fsdp->traffic(), Direction::gather),
                         groups * (bytes_of_blocks(rank, 0, 8) + bytes_of_blocks(rank, 1, 7)));
               EXPECT_EQ(bytes_of(rank.fsdp->traffic(), Direction::reduce), groups * bytes_of_blocks(rank, 0, 8));
             });
  }
}

// With one expert a rank nothing of an expert is ever gathered or reduced: it is computed with where it is owned.
TEST(Fsdp, ExpertsThatAreNotCutStayWhereTheyAreOwned) {
  const MeshShape mesh{1, 4, 4};
  const auto logs = in_world({.model = {.layers = 2, .experts = 4}, .mesh = mesh, .config = {}}, [](Rank& rank) {
    const Schedule schedule = training_schedule(rank.table, 2, LoopOrder::microbatch_outer);
    rank.run(schedule);
    rank.expect_sums(schedule);
    rank.fsdp->begin(schedule);
    const UnitUse& experts = schedule[1].units[1];
    ASSERT_EQ(rank.table.units()[experts.unit].kind, UnitKind::experts);
    const UnitViews views = rank.fsdp->acquire(1, experts.unit);
    for (const OwnedFragment& f : rank.fsdp->fragments()) {
      if (f.where.unit == experts.unit && f.where.offset_in_range == 0) {
        EXPECT_EQ(views.weights[UnitSegment::wire].data, f.weight.data);
      }
    }
    for (int i = 0; i < static_cast<int>(schedule.size()); ++i) rank.run_item(schedule, i);
    rank.fsdp->finish();
    rank.compute().synchronize();
  });
  for (const auto& log : logs) EXPECT_EQ(log, without_experts(log));
}

TEST(Fsdp, ReplicaSumsAreCountedOncePerStep) {
  in_world({.model = {}, .mesh = {2, 1}, .config = {}}, [](Rank& rank) {
    rank.run(training_schedule(rank.table, 3, LoopOrder::microbatch_outer));
    std::uint64_t owned = 0;
    for (int u = 0; u < static_cast<int>(rank.table.units().size()); ++u) owned += rank.placement.unit(u).range() * 4;
    EXPECT_EQ(bytes_of(rank.fsdp->traffic(), Direction::reduce), owned);  // 2 (r - 1) / r of it
    EXPECT_EQ(rank.log.size(), rank.table.units().size());
  });
}

// Runs of items one after the other that add to a unit's gradient: each is reduced once.
std::uint64_t gradient_runs(const Schedule& schedule, int unit) {
  std::uint64_t runs = 0;
  bool going_on = false;
  for (const Item& item : schedule) {
    const bool adds = item.phase != Phase::forward && std::any_of(item.units.begin(), item.units.end(),
                                                                  [&](const UnitUse& use) { return use.unit == unit; });
    runs += adds && !going_on ? 1 : 0;
    going_on = adds;
  }
  return runs;
}

// Per unit and axis, against what the placement says: a gather or reduction brings this rank the other ranks' share of
// its part, and an all-reduce over r replicas 2 (r - 1) / r of it.
TEST(Fsdp, CountedBytesAreThoseOfTheFormula) {
  for (const SmallModel& model : models()) {
    for (const MeshShape& mesh : meshes()) {
      SCOPED_TRACE(fmt::format("{}, {} experts", to_string(mesh), model.experts));
      in_world({.model = model, .mesh = mesh, .config = fsdp_config(false, 2)}, [](Rank& rank) {
        const MeshShape& shape = rank.shape.mesh;
        const Schedule schedule = training_schedule(rank.table, 3, LoopOrder::microbatch_outer);
        constexpr std::uint64_t steps = 2;
        for (std::uint64_t step = 0; step < steps; ++step) {
          rank.run(schedule);
          rank.write_weights();
        }
        std::map<std::tuple<std::string, int, Direction>, std::uint64_t> counted, wanted;
        for (const TrafficLine& line : rank.fsdp->traffic()) {
          EXPECT_EQ(line.resource, Resource::network);
          EXPECT_TRUE(counted.emplace(std::tuple{line.axis, line.unit, line.direction}, line.bytes).second);
        }
        for (int unit = 0; unit < static_cast<int>(rank.table.units().size()); ++unit) {
          const bool experts = rank.table.units()[unit].kind == UnitKind::experts;
          const int ranks = experts ? shape.expert_shard() : shape.shard;
          const auto part = static_cast<std::uint64_t>(rank.place(unit).range()) * 4;
          const std::uint64_t others = part * static_cast<std::uint64_t>(ranks - 1);
          const char* axis = experts ? "expert_shard" : "shard";
          if (ranks > 1) {
            wanted[{axis, unit, Direction::gather}] = steps * others;
            wanted[{axis, unit, Direction::reduce}] = steps * gradient_runs(schedule, unit) * others;
          }
          const auto replicas = static_cast<std::uint64_t>(shape.replicate);
          if (replicas > 1) {
            wanted[{"replicate", unit, Direction::reduce}] = steps * (2 * part * (replicas - 1) / replicas);
          }
        }
        EXPECT_EQ(counted, wanted);
      });
    }
  }
}

TEST(Fsdp, GathersRunAsManyBlocksAheadAsReserved) {
  for (const unsigned ahead : {0u, 1u, 2u}) {
    in_world({.model = {.layers = 6}, .mesh = {1, 2}, .config = fsdp_config(true, ahead)}, [=](Rank& rank) {
      const Schedule schedule = evaluation_schedule(rank.table);
      const auto gathers_to = [&](int blocks) {  // of the segments of the first blocks' units
        std::size_t gathers = 0;
        for (int b = 0; b < std::min<int>(blocks, static_cast<int>(schedule.size())); ++b) {
          for (const UnitUse& use : schedule[b].units) {
            for (const SegmentPlacement& segment : rank.place(use.unit).segments) gathers += segment.range > 0 ? 1 : 0;
          }
        }
        return gathers;
      };
      rank.fsdp->begin(schedule);
      EXPECT_EQ(rank.log.size(), gathers_to(1 + static_cast<int>(ahead)));
      for (int i = 0; i < static_cast<int>(schedule.size()); ++i) {
        rank.fsdp->acquire(i, schedule[i].units[0].unit);
        EXPECT_EQ(rank.log.size(), gathers_to(i + 1 + static_cast<int>(ahead))) << "item " << i << ", ahead " << ahead;
        for (std::size_t u = 1; u < schedule[i].units.size(); ++u) rank.fsdp->acquire(i, schedule[i].units[u].unit);
        for (const UnitUse& use : schedule[i].units) rank.fsdp->release(i, use.unit);
      }
      rank.fsdp->finish();
    });
  }
}

TEST(Fsdp, WeightsThatDidNotChangeAreNotGatheredAgain) {
  in_world({.model = {.layers = 2}, .mesh = {1, 2}, .config = fsdp_config(false, 2)}, [](Rank& rank) {
    rank.run(evaluation_schedule(rank.table));
    const std::uint64_t once = bytes_of(rank.fsdp->traffic(), Direction::gather);
    rank.run(evaluation_schedule(rank.table));
    EXPECT_EQ(bytes_of(rank.fsdp->traffic(), Direction::gather), once);
    rank.write_weights();
    rank.run(evaluation_schedule(rank.table));
    EXPECT_EQ(bytes_of(rank.fsdp->traffic(), Direction::gather), 2 * once);
  });
}

TEST(Fsdp, MasterCopiesStartAtZeroAndPaddingStaysZero) {
  in_world({.model = {}, .mesh = {1, 3}, .config = {}}, [](Rank& rank) {
    const auto fresh = make_fsdp({}, rank.shape.mesh, rank.rank);
    fresh->start(rank.context());
    for (const OwnedFragment& f : fresh->fragments()) {
      for (std::int64_t i = 0; i < f.where.count; ++i) ASSERT_EQ(f.weight.as<float>()[i], 0.0f);
    }
    const Schedule schedule = evaluation_schedule(rank.table);
    rank.fsdp->begin(schedule);
    const UnitViews views = rank.fsdp->acquire(0, 0);
    rank.compute().synchronize();
    const SegmentPlacement& table = rank.placement.unit(0).segment(UnitSegment::wire);
    ASSERT_LT(table.elements, table.padded);
    for (std::int64_t i = table.elements; i < table.padded; ++i) {
      ASSERT_EQ(views.weights[UnitSegment::wire].as<float>()[i], 0.0f);
    }
  });
}

}  // namespace
}  // namespace ananke::testing
