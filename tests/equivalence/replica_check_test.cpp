// Replicas that come apart by one bit are named, on every rank that holds the part.
#include "runtime/engine/replica_check.h"

#include <gtest/gtest.h>

#include <bit>

#include "runtime/base/error.h"
#include "runtime/engine/initial_weights.h"
#include "tests/equivalence/rank_runs.h"
#include "tests/runtime/comm/small_model.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

// What a check says on each of `ranks` replicas when `change` has been at their weights.
std::vector<std::string> verdicts(int ranks, const std::function<void(int rank, std::span<OwnedFragment>)>& change) {
  const ParameterTable table(testing::make_model({}));
  const Placement placement(table, {ranks, 1});
  std::vector<std::string> said(static_cast<std::size_t>(ranks));
  run_backends(ranks, [&](int rank, Backend& backend, Communicator& world) {
    std::vector<OwnedFragment> fragments;
    std::vector<Buffer> memory;
    for (const Fragment& where : placement.fragments(rank)) {
      memory.push_back(backend.device().memory().allocate(static_cast<std::size_t>(where.count) * 4, "weights"));
      fragments.push_back({where, memory.back().view(DType::f32, {where.count}), {}});
    }
    initialise(backend.device(), table, fragments, 1, 0.1);
    ReplicaCheck check(table, backend, world, fragments);
    check.run(1);
    change(rank, fragments);
    try {
      check.run(2);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::numeric);
      said[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  return said;
}

TEST(ReplicaCheck, NamesTheParameterOfABitThatDiffers) {
  // Host memory: the backend's device computes in it, and nothing runs meanwhile.
  const auto said = verdicts(3, [](int rank, std::span<OwnedFragment> fragments) {
    float& value = fragments[4].weight.as<float>()[5];
    if (rank == 1) value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ 1U);
  });
  const std::string name = ParameterTable(testing::make_model({})).parameters()[4].name;
  for (const std::string& text : said) {
    EXPECT_NE(text.find("step 2: 1 of the"), std::string::npos) << text;
    EXPECT_NE(text.find(name + " (elements 0 to "), std::string::npos) << text;
    EXPECT_NE(text.find("all 3 replicas"), std::string::npos) << text;
  }
}

TEST(ReplicaCheck, SaysNothingOfEqualReplicasOrOfOne) {
  for (const int ranks : {1, 2}) {
    const auto said = verdicts(ranks, [](int, std::span<OwnedFragment> fragments) {
      for (const OwnedFragment& f : fragments) f.weight.as<float>()[0] += 1;
    });
    EXPECT_EQ(said, std::vector<std::string>(static_cast<std::size_t>(ranks)));
  }
}

TEST(ReplicaCheck, CostsARunOneReadAStepAndChangesNothing) {
  const TemporaryFolder folder;
  const std::string plain = "training { steps: 3 } evaluation { every_steps: 0 }";
  for (const MeshShape& mesh : {MeshShape{2, 2}, MeshShape{1, 2}}) {
    const RunResult without = train(small_job(folder / to_string(mesh) / "without", plain), {mesh});
    const RunResult with =
        train(small_job(folder / to_string(mesh) / "with", plain + " training { check_replicas: true }"), {mesh});
    EXPECT_EQ(with.weights, without.weights);
    for (std::size_t i = 1; i < with.steps.size(); ++i) {
      EXPECT_EQ(with.steps[i].device_reads(), mesh.replicate > 1 ? 2U : 1U);
    }
  }
}

}  // namespace
}  // namespace ananke
