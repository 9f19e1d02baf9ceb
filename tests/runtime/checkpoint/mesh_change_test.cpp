// What ranks own by a placement, saved on one mesh and loaded on another, expert axes among them: every element comes
// back to whoever owns it then.
#include "runtime/comm/placement.h"
#include "tests/runtime/checkpoint/checkpoint_fixture.h"
#include "tests/runtime/comm/small_model.h"

namespace ananke {
namespace {

// A rank's fragments of a weight and of one optimizer state.
struct OwnedState {
  std::vector<std::vector<float>> values;
  std::vector<StateTarget> targets;

  OwnedState(const ParameterTable& table, const Placement& placement, int rank) {
    for (const Fragment& f : placement.fragments(rank)) {
      const Parameter& parameter = table.parameters()[f.parameter];
      for (const char* state : {"weight", "exp_avg"}) {
        values.emplace_back(static_cast<std::size_t>(f.count));
        targets.push_back({parameter.name, state, parameter.shape, f.begin, f.count, values.back().data()});
      }
    }
  }
  static float value(const StateTarget& target, std::int64_t i) {
    return test_value(RankState::tensor_of(target), 7, target.begin + i);
  }
};

class MeshChange : public CheckpointTest {
 protected:
  std::vector<std::string> save_on(const MeshShape& mesh) const {
    const Placement placement(table_, mesh);
    return as_ranks(mesh.ranks(), [&](int rank, Rendezvous& rendezvous) {
      OwnedState state(table_, placement, rank);
      std::vector<StateFragment> fragments;
      if (coordinates(mesh, rank).replicate == 0) {
        for (const StateTarget& t : state.targets) {
          for (std::int64_t i = 0; i < t.count; ++i) t.data[i] = OwnedState::value(t, i);
          fragments.push_back({t.parameter, t.state, t.shape, t.begin, t.count, t.data});
        }
      }
      Checkpoints(run_dir, rendezvous).save({7, 70, 6, "row 7"}, test_job(), fragments, 1);
    });
  }
  std::vector<std::string> load_on(const MeshShape& mesh) const {
    const Placement placement(table_, mesh);
    return as_ranks(mesh.ranks(), [&](int rank, Rendezvous& rendezvous) {
      OwnedState state(table_, placement, rank);
      if (!Checkpoints(run_dir, rendezvous).load_newest(state.targets)) fail(ErrorKind::checkpoint, "nothing loaded");
      for (const StateTarget& t : state.targets) {
        for (std::int64_t i = 0; i < t.count; ++i) {
          if (t.data[i] != OwnedState::value(t, i)) {
            fail(ErrorKind::checkpoint, "element {} of {} is {}", t.begin + i, t.parameter, t.data[i]);
          }
        }
      }
    });
  }
  ParameterTable table_{testing::make_model({.layers = 2, .experts = 5, .sparse_step = 2})};
};

TEST_F(MeshChange, LoadsOnEveryMeshWhatAnotherWrote) {
  // Whole experts, split experts, one expert a rank, ranks without any (5 experts over 8), replicas.
  const MeshShape meshes[] = {{1, 1}, {1, 4}, {1, 4, 2}, {2, 2, 2}, {1, 8, 8}};
  for (const MeshShape& writer : meshes) {
    std::filesystem::remove_all(run_dir);
    EXPECT_EQ(save_on(writer), std::vector<std::string>(static_cast<std::size_t>(writer.ranks())));
    for (const MeshShape& reader : meshes) {
      EXPECT_EQ(load_on(reader), std::vector<std::string>(static_cast<std::size_t>(reader.ranks())))
          << to_string(writer) << " to " << to_string(reader);
    }
  }
}

}  // namespace
}  // namespace ananke
