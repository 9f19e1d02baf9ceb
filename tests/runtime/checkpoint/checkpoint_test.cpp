#include "ananke/checkpoint.pb.h"
#include "runtime/checkpoint/index.h"
#include "runtime/checkpoint/reader.h"
#include "tests/runtime/checkpoint/checkpoint_fixture.h"

namespace ananke {
namespace {

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST_F(CheckpointTest, AnyNumberOfRanksReadsWhatAnyOtherWrote) {
  for (int writers : {1, 2, 5}) {
    ASSERT_EQ(save(7, writers), all_of(writers, ""));
    for (int readers : {1, 2, 3, 4, 7})
      EXPECT_EQ(load(readers), all_of(readers, "step 7")) << writers << " to " << readers;
  }
}

// Where elements beyond 2^31 lie: fragments of three ranks, read by one that owns a range across two of them.
TEST(CheckpointIndexTest, LocatesElementsBeyondTwoToThe31) {
  constexpr std::int64_t third = 3'000'000'001, size = 3 * third;
  CheckpointIndex index;
  IndexBuilder builder(index);
  for (std::int64_t rank : {2, 0, 1}) {
    CheckpointIndex part;
    part.add_files()->set_name(shard_file_name(static_cast<int>(rank)));
    CheckpointTensor& tensor = *part.add_tensors();
    tensor.set_parameter("w");
    tensor.set_state("weight");
    tensor.add_shape(3);
    tensor.add_shape(third);
    CheckpointFragment& piece = *tensor.add_fragments();
    piece.set_file(0);
    piece.set_begin(static_cast<std::uint64_t>(rank * third));
    piece.set_count(static_cast<std::uint64_t>(third));
    builder.add(part);
  }
  builder.finish();
  const StateTarget target{"w", "weight", {3, third}, third + 5, third, nullptr};
  const auto pieces = locate(index, std::span(&target, 1));
  ASSERT_EQ(pieces.size(), 2u);
  std::int64_t at = 0;
  for (const std::int64_t rank : {1, 2}) {
    const auto piece = std::ranges::find_if(pieces, [&](const FilePiece& p) {
      return index.files(p.file).name() == shard_file_name(static_cast<int>(rank));
    });
    ASSERT_NE(piece, pieces.end());
    EXPECT_EQ(piece->offset, rank == 1 ? 5 : 0);
    EXPECT_EQ(piece->offset_in_target, at);
    EXPECT_EQ(piece->count, rank == 1 ? third - 5 : 5);
    at += piece->count;
  }
  EXPECT_EQ(at, third);
  EXPECT_EQ(size, 9'000'000'003);
}

TEST_F(CheckpointTest, TheNewestIsLoaded) {
  for (std::uint64_t step : {9, 10, 100000000, 11}) ASSERT_EQ(save(step, 2), all_of(2, ""));
  const auto found = find_checkpoints(run_dir);
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(found[0].step, 100000000u);
  EXPECT_EQ(found[0].folder.filename(), "step-100000000");
  EXPECT_TRUE(found[0].complete());
  EXPECT_GT(found[0].bytes, 1000u);
  EXPECT_EQ(found[3].step, 9u);
}

TEST_F(CheckpointTest, NothingIsLoadedWhereNothingWasSaved) {
  EXPECT_TRUE(find_checkpoints(run_dir).empty());
  EXPECT_EQ(load(3), all_of(3, "nothing"));
}

TEST_F(CheckpointTest, AReplicaWritesNoFile) {
  const auto errors = as_ranks(4, [&](int rank, Rendezvous& rendezvous) {
    RankState state(test_tensors(), rank % 2, 2);
    state.fill(5);
    const auto fragments = rank < 2 ? state.fragments() : std::vector<StateFragment>{};
    Checkpoints(run_dir, rendezvous).save({5, 50, 4, "row 5"}, test_job(), fragments, 0);
  });
  EXPECT_EQ(errors, all_of(4, ""));
  EXPECT_EQ(names_in(step_folder(5)),
            (std::vector<std::string>{"COMPLETE", "index.json", "rank-0000.h5", "rank-0001.h5"}));
  EXPECT_EQ(load(3), all_of(3, "step 5"));
}

TEST_F(CheckpointTest, OlderOnesGoOnceTheNewerIsDurable) {
  for (std::uint64_t step = 1; step <= 5; ++step) {
    ASSERT_EQ(save(step, 2, 2), all_of(2, ""));
    EXPECT_EQ(names_in(checkpoints_folder(run_dir)).size(), std::min<std::size_t>(step, 2));
  }
  EXPECT_EQ(names_in(checkpoints_folder(run_dir)), (std::vector<std::string>{"step-00000004", "step-00000005"}));
}

TEST_F(CheckpointTest, DamagedOnesDoNotCountAsKept) {
  for (std::uint64_t step = 1; step <= 3; ++step) save(step, 2);
  std::filesystem::remove(step_folder(3) / "rank-0001.h5");
  save(4, 2, 2);
  EXPECT_EQ(names_in(checkpoints_folder(run_dir)),
            (std::vector<std::string>{"step-00000002", "step-00000003", "step-00000004"}));
}

TEST_F(CheckpointTest, ASecondCheckpointOfAStepTakesTheFirstOnesPlace) {
  save(6, 3);
  std::filesystem::remove(step_folder(6) / "rank-0002.h5");
  ASSERT_EQ(save(6, 2, 1), all_of(2, ""));
  EXPECT_EQ(names_in(checkpoints_folder(run_dir)), std::vector<std::string>{"step-00000006"});
  EXPECT_EQ(load(2), all_of(2, "step 6"));
}

TEST_F(CheckpointTest, OneObjectSavesAndLoadsAgainAndAgain) {
  const auto errors = as_ranks(2, [&](int rank, Rendezvous& rendezvous) {
    Checkpoints checkpoints(run_dir, rendezvous);
    RankState state(test_tensors(), rank, 2);
    for (std::uint64_t step = 1; step < 4; ++step) {
      state.fill(step);
      checkpoints.save({step, 0, 0, ""}, test_job(), state.fragments(), 1);
      state.fill(99);
      const auto loaded = checkpoints.load_newest(state.targets);
      ANANKE_CHECK(loaded && loaded->progress.step == step && state.wrong(step) == 0, "step {}", step);
    }
  });
  EXPECT_EQ(errors, all_of(2, ""));
}

// What does not lie in host memory is handed over and taken back in pieces, in order and once each.
TEST_F(CheckpointTest, TensorsComeAndGoInPieces) {
  constexpr std::int64_t count = StateFragment::at_once + 5, skipped = 3;
  const auto value = [](std::int64_t i) { return static_cast<float>(i % 9973); };
  const auto errors = as_ranks(1, [&](int, Rendezvous& rendezvous) {
    std::int64_t given = 0, taken = 0, wrong = 0;
    StateFragment out{"w", "weight", {count}, 0, count};
    out.move = [&](std::int64_t first, std::span<float> numbers) {
      ANANKE_CHECK(first == given && std::ssize(numbers) <= StateFragment::at_once, "a piece at {}", first);
      for (float& number : numbers) number = value(given++);
    };
    Checkpoints checkpoints(run_dir, rendezvous);
    checkpoints.save({1, 0, 0, ""}, test_job(), std::span(&out, 1), 0);
    ANANKE_CHECK(verify_checkpoint(checkpoints_folder(run_dir) / step_folder_name(1)).problems.empty(), "damaged");
    for (const std::int64_t begin : {std::int64_t{0}, skipped}) {
      taken = 0;
      StateTarget in{"w", "weight", {count}, begin, count - begin};
      in.move = [&](std::int64_t first, std::span<const float> numbers) {
        ANANKE_CHECK(first == taken && std::ssize(numbers) <= StateTarget::at_once, "a piece at {}", first);
        for (const float number : numbers) wrong += number != value(begin + taken++);
      };
      ANANKE_CHECK(checkpoints.load_newest(std::span(&in, 1)).has_value(), "nothing to load");
      ANANKE_CHECK(given == count && taken == count - begin && wrong == 0, "{} given, {} taken, {} wrong", given, taken,
                   wrong);
    }
  });
  EXPECT_EQ(errors, all_of(1, ""));
}

TEST_F(CheckpointTest, BitsOfEveryKindOfFloatSurvive) {
  const std::uint32_t patterns[] = {0x7fc00001, 0xff800000, 0x80000000, 0x00000001, 0x3f800000, 0x7f7fffff};
  const auto errors = as_ranks(1, [&](int, Rendezvous& rendezvous) {
    float data[6], back[6];
    std::memcpy(data, patterns, sizeof data);
    Checkpoints checkpoints(run_dir, rendezvous);
    const StateFragment out{"scale", "weight", {2, 3}, 0, 6, data};
    checkpoints.save({1, 0, 0, std::string("\0\xff", 2)}, test_job(), std::span(&out, 1), 0);
    const StateTarget in{"scale", "weight", {2, 3}, 0, 6, back};
    const auto loaded = checkpoints.load_newest(std::span(&in, 1));
    ANANKE_CHECK(std::memcmp(back, patterns, sizeof back) == 0, "bits differ");
    ANANKE_CHECK(loaded->progress.batches_position == std::string("\0\xff", 2), "position differs");
  });
  EXPECT_EQ(errors, all_of(1, ""));
}

}  // namespace
}  // namespace ananke
