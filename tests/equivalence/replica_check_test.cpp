// Replicas and routers' biases that come apart by one bit are named, on every rank that holds the part.
#include "runtime/engine/replica_check.h"

#include <gtest/gtest.h>

#include <bit>

#include "runtime/base/error.h"
#include "runtime/comm/rendezvous.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/initial_weights.h"
#include "tests/equivalence/rank_runs.h"
#include "tests/runtime/comm/small_model.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

Model model_with_biases() {
  Model model = testing::make_model({});
  model.set_e_score_correction_bias(true);
  return model;
}

struct Held {
  Device& device;
  std::vector<OwnedFragment> fragments;
  TensorView biases;  // f32 [layers, E]
};

// Of the device's memory, which the host may be unable to reach otherwise.
void change_value(Device& device, const TensorView& values, std::int64_t index,
                  const std::function<float(float)>& change) {
  const TensorView one = values.reshaped({values.elements()}).slice(index, 1);
  const Buffer staging = device.host_memory().allocate(sizeof(float), "test value");
  auto* value = static_cast<float*>(staging.data());
  device.read(one, value);
  *value = change(*value);
  device.copy(device.stream(Resource::compute), one.data, value, sizeof(float));
  device.stream(Resource::compute).synchronize();
}

void flip_a_bit(const Held& held, const TensorView& values, std::int64_t index) {
  change_value(held.device, values, index,
               [](float value) { return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ 1U); });
}

// What a check says on each rank when `change` has been at what it holds.
std::vector<std::string> verdicts(const MeshShape& mesh, const std::function<void(int rank, Held&)>& change) {
  const ParameterTable table(model_with_biases());
  const Placement placement(table, mesh);
  const std::int64_t layers = std::ssize(table.buffers()), experts = table.buffers().at(0).shape[0];
  std::vector<std::string> said(static_cast<std::size_t>(mesh.ranks()));
  run_roles(small_job("unused"), mesh, [&](const RoleContext& context, EngineRoles& roles, Rendezvous& rendezvous) {
    Backend& backend = *roles.backend;
    std::vector<int> everyone;
    for (int rank = 0; rank < mesh.ranks(); ++rank) everyone.push_back(rank);
    const auto world = backend.make_communicator("world", everyone, rendezvous);
    const auto replicate = backend.make_communicator("replicate", replicate_group(mesh, context.rank), rendezvous);
    Held held{backend.device(), {}, {}};
    std::vector<Buffer> memory;
    const auto allocate = [&](std::int64_t count) {
      memory.push_back(backend.device().memory().allocate(static_cast<std::size_t>(count) * 4, "weights"));
      return memory.back().view(DType::f32, {count});
    };
    for (const Fragment& where : placement.fragments(context.rank)) {
      held.fragments.push_back({where, allocate(where.count), {}});
    }
    held.biases = allocate(layers * experts).reshaped({layers, experts});
    initialise(backend.device(), table, held.fragments, 1, 0.1);
    for (std::int64_t i = 0; i < layers * experts; ++i) {
      change_value(held.device, held.biases, i, [](float) { return 0.25F; });
    }
    ReplicaCheck check(table, backend, *replicate, *world, held.fragments, held.biases);
    check.run(1);
    change(context.rank, held);
    try {
      check.run(2);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::numeric);
      said[static_cast<std::size_t>(context.rank)] = error.what();
    }
    rendezvous.exchange("compared", {}, "");
  });
  return said;
}

TEST(ReplicaCheck, NamesTheParameterOfABitThatDiffers) {
  const auto said = verdicts({3, 1}, [](int rank, Held& held) {
    if (rank == 1) flip_a_bit(held, held.fragments[4].weight, 5);
  });
  const std::string name = ParameterTable(model_with_biases()).parameters()[4].name;
  for (const std::string& text : said) {
    EXPECT_NE(text.find("step 2: 1 of the"), std::string::npos) << text;
    EXPECT_NE(text.find(name + " (elements 0 to "), std::string::npos) << text;
    EXPECT_NE(text.find("all 3 replicas"), std::string::npos) << text;
    EXPECT_EQ(text.find("biases"), std::string::npos) << text;
  }
}

// Also where weights have no replicas: every rank holds the biases.
TEST(ReplicaCheck, NamesTheRouterWhoseBiasDiffersOnSomeRank) {
  for (const MeshShape& mesh : {MeshShape{2, 1}, MeshShape{1, 3}, MeshShape{2, 2}}) {
    SCOPED_TRACE(to_string(mesh));
    const auto said = verdicts(mesh, [](int rank, Held& held) {
      if (rank == 1) flip_a_bit(held, held.biases, held.biases.shape[1] + 2);
    });
    for (const std::string& text : said) {
      EXPECT_NE(text.find("step 2: 1 of the 2 routers' biases are not the same bits on all " +
                          std::to_string(mesh.ranks()) + " ranks: model.layers.1.mlp.gate.e_score_correction_bias;"),
                std::string::npos)
          << text;
    }
  }
}

TEST(ReplicaCheck, NamesWeightsAndBiasesTogether) {
  const auto said = verdicts({2, 1}, [](int rank, Held& held) {
    if (rank == 0) return;
    for (int i = 0; i < 5; ++i) flip_a_bit(held, held.fragments[static_cast<std::size_t>(i)].weight, 0);
    for (int i = 0; i < 2; ++i) flip_a_bit(held, held.biases, i * held.biases.shape[1]);
  });
  for (const std::string& text : said) {
    EXPECT_NE(text.find("step 2: 5 of the"), std::string::npos) << text;
    EXPECT_NE(text.find(", ...; and 2 of the 2 routers' biases"), std::string::npos) << text;
  }
}

TEST(ReplicaCheck, SaysNothingOfEqualRanksOrOfOne) {
  for (const MeshShape& mesh : {MeshShape{1, 1}, MeshShape{2, 1}, MeshShape{1, 2}}) {
    const auto said = verdicts(mesh, [](int, Held& held) {
      const auto more = [](float value) { return value + 1; };
      for (const OwnedFragment& f : held.fragments) change_value(held.device, f.weight, 0, more);
      change_value(held.device, held.biases, 3, more);
    });
    EXPECT_EQ(said, std::vector<std::string>(static_cast<std::size_t>(mesh.ranks())));
  }
}

TEST(ReplicaCheck, CostsARunOneReadAStepAndChangesNothing) {
  const TemporaryFolder folder;
  const std::string plain = "training { steps: 3 } evaluation { every_steps: 0 }";
  int number = 0;
  for (const std::string biased : {"", " model { e_score_correction_bias: true router_bias_update_rate: 0.01 }"}) {
    for (const MeshShape& mesh : {MeshShape{2, 2}, MeshShape{1, 2}, MeshShape{1, 1}}) {
      SCOPED_TRACE(to_string(mesh) + biased);
      const auto job = [&](const std::string& more) {
        return small_job(folder / std::to_string(number++), plain + biased + more);
      };
      const RunResult without = train(job(""), {mesh});
      const RunResult with = train(job(" training { check_replicas: true }"), {mesh});
      EXPECT_EQ(with.weights, without.weights);
      const bool compares = mesh.replicate > 1 || (!biased.empty() && mesh.ranks() > 1);
      for (std::size_t i = 1; i < with.steps.size(); ++i) {
        EXPECT_EQ(with.steps[i].device_reads(), without.steps[i].device_reads() + (compares ? 1 : 0));
      }
    }
  }
}

}  // namespace
}  // namespace ananke
