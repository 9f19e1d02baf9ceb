// State in host memory: every use sees the placed weights and owners get plain sums, whatever stream runs first.
#include "plugins/fsdp/residence.h"

#include <algorithm>
#include <mutex>

#include "tests/plugins/fsdp/fsdp_world.h"
#include "tests/refusal.h"

namespace ananke::testing {
namespace {

using plugin::Fsdp;

Fsdp on_host(Fsdp config, double fraction = 1) {
  config.set_residence(Fsdp::HOST);
  config.set_host_fraction(fraction);
  return config;
}

Fsdp wires(Fsdp::Gather gather, Fsdp::Reduce reduce, bool node_copy = false) {
  Fsdp config;
  config.set_gather_dense(gather);
  config.set_gather_experts(gather);
  config.set_reduce_dense(reduce);
  config.set_reduce_experts(reduce);
  config.set_reduce_chunk_mib(1);
  config.set_node_copy(node_copy);
  return config;
}

std::vector<MeshShape> meshes() { return {{1, 1}, {1, 3}, {2, 2}, {3, 1}, {1, 4, 2}, {1, 4, 4}}; }

std::vector<Eager> orders() { return {Eager::compute, Eager::network, Eager::host_to_device, Eager::device_to_host}; }

TEST(FsdpResidence, OfAFractionWithoutAHostIsRefused) {
  Fsdp config;
  config.set_host_fraction(0.5);
  EXPECT_ERROR(make_fsdp(config, {1, 1}, 0), ErrorKind::config, "host_fraction 0.5", "residence: HOST");
}

TEST(FsdpResidence, OfWeightsInBf16IsRefused) {
  for (const double fraction : {1.0, 0.5}) {
    EXPECT_ERROR(make_fsdp(on_host({}, fraction), {1, 1}, 0, 1, DType::bf16, DType::bf16), ErrorKind::config,
                 "residence is HOST", "training.weights is BF16", "remove one of the two");
  }
  EXPECT_NE(make_fsdp(on_host({}), {1, 1}, 0, 1, DType::bf16, DType::f32), nullptr);
}

TEST(FsdpResidence, IsOfLayersEvenlySpreadOrOfEverything) {
  const ParameterTable table(make_model({.layers = 8, .experts = 2}));
  const auto layers = [&](double fraction) { return fsdp::residence_of(table, on_host({}, fraction)).layers; };
  EXPECT_EQ(fsdp::residence_of(table, {}).layers, std::vector<int>{});
  EXPECT_EQ(layers(0), std::vector<int>{});
  EXPECT_EQ(layers(0.25), (std::vector<int>{3, 7}));
  EXPECT_EQ(layers(0.5), (std::vector<int>{1, 3, 5, 7}));
  const auto whole = fsdp::residence_of(table, on_host({})), half = fsdp::residence_of(table, on_host({}, 0.5));
  EXPECT_EQ(std::ranges::count(whole.on_host, true), std::ssize(table.units()));
  EXPECT_EQ(std::ranges::count(half.on_host, true), 4 * 2) << "dense and experts of four layers, no embedding, no head";
  EXPECT_NE(fsdp::describe(half, 1 << 20).find("4 of 8 layers (1, 3, 5, 7)"), std::string::npos);
}

// What the square sums must be: exact, since the gradients are small integers.
void expect_square_sums(Rank& rank) {
  std::vector<Fragment> there;
  std::vector<double> wanted;
  for (std::size_t i = 0; i < rank.gradients.size(); ++i) {
    const OwnedFragment& f = rank.fsdp->fragments()[i];
    EXPECT_EQ(f.place, rank.fsdp->place_of(rank.table, f.where.unit));
    if (f.place == Place::device) continue;
    there.push_back(f.where);
    if (std::size(runs_of(there)) > wanted.size()) wanted.push_back(0);
    for (const float value : rank.gradients[i]) wanted.back() += static_cast<double>(value) * value;
  }
  const TensorView sums = rank.fsdp->square_sums();
  ASSERT_EQ(sums ? sums.elements() : 0, std::ssize(wanted));
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(sums.as<double>()[i], wanted[i]) << "run " << i;
}

void train_and_evaluate(Rank& rank) {
  for (const auto& [microbatches, per_gather] : {std::pair{3, 1}, {4, 2}}) {
    const Schedule schedule = training_schedule(rank.table, microbatches, per_gather);
    rank.run(schedule);
    rank.expect_sums(schedule);
    expect_square_sums(rank);
    rank.write_weights();
    rank.run(evaluation_schedule(rank.table));  // looks at the gradients again
    rank.expect_sums(schedule);
  }
}

TEST(FsdpResidence, OnTheHostEveryItemSeesThePlacedWeightsAndOwnersGetPlainSums) {
  const SmallModel models[] = {{.layers = 4, .experts = 5},
                               {.layers = 4, .experts = 3, .hidden = 7, .width = 3, .sparse_step = 2, .tied = true}};
  for (const SmallModel& model : models) {
    for (const MeshShape& mesh : meshes()) {
      for (const Eager eager : orders()) {
        for (const Fsdp& config : {on_host(fsdp_config(true, 0, 0)), on_host(fsdp_config(true, 2, 1), 0.5),
                                   on_host(fsdp_config(false, 2, 1))}) {
          // The tightest reservations are enough where there are many ranks.
          if (mesh.ranks() > 3 && config.prefetch_blocks() > 0) continue;
          SCOPED_TRACE(fmt::format("{}, {} experts, {}, {}", to_string(mesh), model.experts, config.ShortDebugString(),
                                   name_of(eager)));
          in_world({model, mesh, config, eager}, train_and_evaluate);
        }
      }
    }
  }
}

TEST(FsdpResidence, OnTheHostItIsTheSameOverNarrowWiresAndInBf16) {
  const Fsdp configs[] = {on_host(wires(Fsdp::BF16, Fsdp::BF16_ALL_TO_ALL)),
                          on_host(wires(Fsdp::FP8_E4M3, Fsdp::BF16_ALL_TO_ALL, true), 0.5),
                          on_host(wires(Fsdp::FP32, Fsdp::FP32_REDUCE_SCATTER, true))};
  for (const DType compute : {DType::f32, DType::bf16}) {
    for (const MeshShape& mesh : {MeshShape{1, 1}, {1, 4}, {1, 4, 2}}) {
      for (const Eager eager : orders()) {
        for (const Fsdp& config : configs) {
          SCOPED_TRACE(fmt::format("{}, {}, {}", to_string(mesh), config.ShortDebugString(), name_of(eager)));
          in_world({{.layers = 4, .experts = 5}, mesh, config, eager, mesh.shard > 1 ? 2 : 1, compute},
                   train_and_evaluate);
        }
      }
    }
  }
}

// Sums that round, in the order of the schedule: the same bits as on the device.
std::vector<std::vector<float>> rounding_gradients(const MeshShape& mesh, const Fsdp& config) {
  std::mutex guard;
  std::vector<std::vector<float>> all(static_cast<std::size_t>(mesh.ranks()));
  in_world({{.layers = 3, .experts = 4, .tied = true}, mesh, config}, [&](Rank& rank) {
    const Schedule schedule = training_schedule(rank.table, 3, LoopOrder::microbatch_outer);
    rank.fsdp->begin(schedule);
    for (int i = 0; i < static_cast<int>(schedule.size()); ++i) {
      for (const UnitUse& use : schedule[static_cast<std::size_t>(i)].units) {
        const UnitViews views = rank.fsdp->acquire(i, use.unit);
        if (schedule[static_cast<std::size_t>(i)].phase == Phase::forward) continue;
        rank.compute().put([=, &rank] {
          for (int time = 0; time < 2; ++time) {  // an accumulation of more than one term
            rank.each_element(use.unit, [&](int, std::int64_t e, UnitSegment which, std::int64_t at) {
              float& sum = views.gradient[which].as<float>()[at];
              if (views.write_gradient && time == 0) sum = 0;
              sum += 1.0f / static_cast<float>(3 + rank.rank * 7 + i * 5 + time + e % 97);
            });
          }
        });
      }
      for (const UnitUse& use : schedule[static_cast<std::size_t>(i)].units) {
        if (schedule[static_cast<std::size_t>(i)].phase != Phase::forward) rank.fsdp->reduce(i, use.unit);
        rank.fsdp->release(i, use.unit);
      }
    }
    rank.fsdp->finish();
    rank.compute().synchronize();
    std::lock_guard lock(guard);
    for (const OwnedFragment& f : rank.fsdp->fragments()) {
      auto& mine = all[static_cast<std::size_t>(rank.rank)];
      mine.insert(mine.end(), f.gradient.as<float>(), f.gradient.as<float>() + f.where.count);
    }
  });
  return all;
}

TEST(FsdpResidence, OnTheHostSumsHaveTheBitsThatTheyHaveOnTheDevice) {
  for (const MeshShape& mesh : meshes()) {
    const auto here = rounding_gradients(mesh, fsdp_config(true, 1));
    EXPECT_EQ(rounding_gradients(mesh, on_host(fsdp_config(true, 1))), here) << to_string(mesh);
    EXPECT_EQ(rounding_gradients(mesh, on_host(fsdp_config(true, 1), 0.4)), here) << to_string(mesh);
  }
}

TEST(FsdpResidence, PlanIsWhatTheLedgerShows) {
  for (const MeshShape& mesh : meshes()) {
    for (const Fsdp& config : {on_host(fsdp_config(true, 1)), on_host(fsdp_config(false, 1), 0.6),
                               on_host(wires(Fsdp::FP8_E4M3, Fsdp::BF16_ALL_TO_ALL)), on_host({}, 0)}) {
      in_world({{.layers = 5, .tied = true}, mesh, config}, [](Rank& rank) {
        std::map<std::string, std::uint64_t> planned, used;
        for (const PlanLine& line : rank.fsdp->plan(rank.table, rank.placement)) {
          if (line.lifetime == Lifetime::run) planned[line.purpose] += line.bytes;
        }
        for (const Arena::Line& line : rank.backend.device().memory().ledger()) used[line.purpose] += line.bytes;
        EXPECT_EQ(planned, used);
        const std::uint64_t peak = rank.backend.device().memory().peak();
        rank.run(training_schedule(rank.table, 2, LoopOrder::layer_outer));
        EXPECT_EQ(rank.backend.device().memory().peak(), peak) << "a step allocates";
      });
    }
  }
}

std::uint64_t moved(const Traffic& traffic, Resource resource, Direction direction) {
  std::uint64_t bytes = 0;
  for (const TrafficLine& line : traffic) {
    if (line.resource == resource && line.direction == direction) bytes += line.bytes;
  }
  return bytes;
}

// Of a step of three microbatches: a sum goes out after each and comes back before the next two; in groups, once.
TEST(FsdpResidence, SaysWhatTravels) {
  for (const MeshShape& mesh : {MeshShape{1, 1}, {1, 2}}) {
    in_world({{.layers = 3, .experts = 4}, mesh, on_host(fsdp_config(true, 4000000000u))}, [](Rank& rank) {
      std::uint64_t owned = 0;
      for (int unit = 0; unit < static_cast<int>(rank.table.units().size()); ++unit) {
        owned += static_cast<std::uint64_t>(rank.place(unit).range()) * 4;
      }
      const auto of = [&](Resource resource, Direction direction) {
        return moved(rank.fsdp->traffic(), resource, direction);
      };
      rank.run(training_schedule(rank.table, 3, LoopOrder::microbatch_outer));
      EXPECT_EQ(of(Resource::host_to_device, Direction::weights), owned) << "all fit at once: gathered once";
      EXPECT_EQ(of(Resource::device_to_host, Direction::gradients), 3 * owned);
      EXPECT_EQ(of(Resource::host_to_device, Direction::gradients), 2 * owned);
      rank.run(training_schedule(rank.table, 3, LoopOrder::layer_outer));
      EXPECT_EQ(of(Resource::device_to_host, Direction::gradients), 4 * owned);
      EXPECT_EQ(of(Resource::host_to_device, Direction::gradients), 2 * owned);
    });
  }
}

}  // namespace
}  // namespace ananke::testing
