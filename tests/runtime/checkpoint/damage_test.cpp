#include <sys/stat.h>

#include "runtime/base/hash.h"
#include "tests/runtime/checkpoint/checkpoint_fixture.h"

namespace ananke {
namespace {

using testing::Test;

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void overwrite(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// Two checkpoints; `damage` gets the newer folder. Every rank must load the older one and say `reason` of the newer.
class DamagedCheckpoint : public CheckpointTest {
 protected:
  void expect_older(const std::function<void(const std::filesystem::path&)>& damage, const std::string& reason) {
    ASSERT_EQ(save(1, 3), all_of(3, ""));
    ASSERT_EQ(save(2, 3), all_of(3, ""));
    damage(step_folder(2));
    for (int ranks : {1, 3, 4}) {
      const auto results = load(ranks);
      for (const auto& result : results) {
        EXPECT_EQ(result, results.front());
        EXPECT_EQ(result.substr(0, 7), "step 1\n");
        EXPECT_NE(result.find("step-00000002: "), std::string::npos) << result;
        EXPECT_NE(result.find(reason), std::string::npos) << result;
      }
    }
  }
};

TEST_F(DamagedCheckpoint, AMissingMarkerMeansNotWrittenToItsEnd) {
  expect_older([](auto& folder) { std::filesystem::remove(folder / "COMPLETE"); }, "COMPLETE is missing");
}

TEST_F(DamagedCheckpoint, AnEmptyMarkerIsNoMarker) {
  expect_older([](auto& folder) { overwrite(folder / "COMPLETE", ""); }, "COMPLETE has 0 bytes");
}

TEST_F(DamagedCheckpoint, AMarkerOfAnotherIndex) {
  expect_older([](auto& folder) { overwrite(folder / "COMPLETE", "index.json " + std::string(32, 'a') + "\n"); },
               "where the marker says aaaa");
}

TEST_F(DamagedCheckpoint, AMissingIndex) {
  expect_older([](auto& folder) { std::filesystem::remove(folder / "index.json"); }, "index.json is missing");
}

TEST_F(DamagedCheckpoint, AMissingFile) {
  expect_older([](auto& folder) { std::filesystem::remove(folder / "rank-0001.h5"); }, "rank-0001.h5: No such file");
}

TEST_F(DamagedCheckpoint, ATruncatedFile) {
  expect_older([](auto& folder) { std::filesystem::resize_file(folder / "rank-0002.h5", 100); },
               "rank-0002.h5 has 100 bytes where the index says");
}

TEST_F(DamagedCheckpoint, AFlippedBitAnywhereInAFile) {
  expect_older(
      [](auto& folder) {
        std::string bytes = bytes_of(folder / "rank-0001.h5");
        bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
        overwrite(folder / "rank-0001.h5", bytes);
      },
      "rank-0001.h5 is damaged: its hash is");
}

TEST_F(DamagedCheckpoint, AnIndexThatIsNoIndexButVouchedFor) {
  expect_older(
      [](auto& folder) {
        overwrite(folder / "index.json", "{\"step\": [}");
        overwrite(folder / "COMPLETE", "index.json " + hash_hex("{\"step\": [}") + "\n");
      },
      "is not a checkpoint's index");
}

// Every rank asks it where to read: nothing in it may lead outside a file or a tensor.
TEST_F(DamagedCheckpoint, AnIndexThatContradictsItselfButIsVouchedFor) {
  const auto vouched = [](const std::string& tensors) {
    return [tensors](const std::filesystem::path& folder) {
      const std::string text =
          R"({"format":1,"step":"2","files":[{"name":"rank-0000.h5","bytes":"9"}],"tensors":[)" + tensors + "]}";
      overwrite(folder / "index.json", text);
      overwrite(folder / "COMPLETE", "index.json " + hash_hex(text) + "\n");
    };
  };
  const auto tensor = [](const std::string& shape, const std::string& fragments) {
    return R"({"parameter":"p","state":"weight","shape":[)" + shape + R"(],"fragments":[)" + fragments + "]}";
  };
  const auto fragment = [](const std::string& begin, const std::string& count, int file = 0) {
    return fmt::format(R"({{"file":{},"begin":"{}","count":"{}"}})", file, begin, count);
  };
  const std::string good = tensor("2,3", fragment("0", "4") + "," + fragment("4", "2"));
  expect_older(vouched(good + "," + good), "'weight' of p stands in it twice");
  expect_older(vouched(tensor("2,3", fragment("0", "6", 1))), "file 1 of 1");
  expect_older(vouched(tensor("2,3", fragment("0", "5"))), "1 of 6 elements are in no file");
  expect_older(vouched(tensor("2,3", fragment("0", "4") + "," + fragment("3", "3"))), "3 elements from 3");
  expect_older(vouched(tensor("2,3", fragment("0", "4") + "," + fragment("4", "18446744073709551615"))), "from 4");
  expect_older(vouched(tensor("4294967296,4294967296", "")), "shape is [4294967296, 4294967296]");
}

TEST_F(DamagedCheckpoint, AFolderRenamedToAnotherStep) {
  expect_older(
      [this](auto& folder) {
        std::filesystem::remove_all(folder);
        std::filesystem::copy(step_folder(1), folder);
      },
      "its index is of step 1");
}

TEST_F(DamagedCheckpoint, WhenNoneIsLeftEveryRankSaysSoWithAllReasons) {
  save(1, 2);
  save(2, 2);
  std::filesystem::remove(step_folder(1) / "COMPLETE");
  std::string bytes = bytes_of(step_folder(2) / "rank-0000.h5");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  overwrite(step_folder(2) / "rank-0000.h5", bytes);
  for (const auto& result : load(2)) {
    EXPECT_EQ(result.substr(0, 38), "checkpoint: none of the 2 checkpoints ") << result;
    EXPECT_NE(result.find("step-00000002: rank 0: rank-0000.h5 is damaged"), std::string::npos) << result;
    EXPECT_NE(result.find("step-00000001: the marker COMPLETE is missing"), std::string::npos) << result;
  }
}

TEST_F(DamagedCheckpoint, ForeignFilesAndFoldersAreNotLookedAt) {
  const auto folder = checkpoints_folder(run_dir);
  for (const char* name : {"step-00000009.bak", "step-9", "step-0000000x", "notes", "step-00000009.partial.12ab",
                           "step-00000008.deleting"}) {
    std::filesystem::create_directories(folder / name);
  }
  overwrite(folder / "step-00000007", "a file, no folder");
  EXPECT_TRUE(find_checkpoints(run_dir).empty());
  EXPECT_EQ(load(2), all_of(2, "nothing"));
  save(1, 2);
  EXPECT_EQ(load(2), all_of(2, "step 1"));
  EXPECT_TRUE(std::filesystem::exists(folder / "notes"));
  EXPECT_TRUE(std::filesystem::exists(folder / "step-00000009.bak"));
  EXPECT_FALSE(std::filesystem::exists(folder / "step-00000009.partial.12ab")) << "leftovers go at the next save";
  EXPECT_FALSE(std::filesystem::exists(folder / "step-00000008.deleting"));
}

TEST_F(CheckpointTest, OfAnotherModelIsRefusedWithBothShapes) {
  save(1, 2);
  auto tensors = test_tensors();
  tensors[0].shape = {31, 8};
  const auto errors = as_ranks(2, [&](int rank, Rendezvous& rendezvous) {
    RankState state(tensors, rank, 2);
    Checkpoints(run_dir, rendezvous).load_newest(state.targets);
  });
  for (const auto& error : errors) {
    EXPECT_NE(
        error.find("step-00000001 does not fit this job: model.embed_tokens.weight is [31, 7] in it and [31, 8] in"),
        std::string::npos)
        << error;
  }
}

TEST_F(CheckpointTest, WithoutATensorThatIsNeededIsRefusedOnAllRanksAlike) {
  save(1, 2);
  const auto errors = as_ranks(2, [&](int rank, Rendezvous& rendezvous) {
    auto tensors = test_tensors();
    if (rank == 1) tensors.push_back({"model.norm.weight", "momentum", {3}});  // seen by one rank only
    RankState state(tensors, rank, 2);
    Checkpoints(run_dir, rendezvous).load_newest(state.targets);
  });
  for (const auto& error : errors) {
    EXPECT_NE(error.find("rank 1: "), std::string::npos) << error;
    EXPECT_NE(
        error.find("it holds no 'momentum' of model.norm.weight; of this parameter it has 'weight', 'exp_avg_sq'"),
        std::string::npos)
        << error;
  }
}

TEST_F(CheckpointTest, ARefusedResumeKeepsItsKindAndMessage) {
  save(1, 2);
  const auto results = load(2, [](const LoadedState& state) {
    fail(ErrorKind::config, "seed changed since {}", state.folder.filename().string());
  });
  EXPECT_EQ(results, all_of(2, "config: seed changed since step-00000001"));
}

TEST_F(CheckpointTest, ElementsThatNobodyWroteOrTwoRanksWroteAreNamedAndNothingStays) {
  for (const std::int64_t begin : {4, 6}) {
    const auto errors = as_ranks(2, [&](int rank, Rendezvous& rendezvous) {
      const std::vector<float> data(10, 1.0f);
      const StateFragment mine{"w", "weight", {10}, rank == 0 ? 0 : begin, rank == 0 ? 5 : 10 - begin, data.data()};
      Checkpoints(run_dir, rendezvous).save({1, 1, 1, ""}, test_job(), std::span(&mine, 1), 0);
    });
    const std::string part = begin == 4 ? "elements 4 to 4 of 'weight' of w were written by two ranks"
                                        : "elements 5 to 5 of 'weight' of w were written by no rank";
    for (const auto& error : errors) EXPECT_NE(error.find(part), std::string::npos) << error;
    EXPECT_TRUE(std::filesystem::is_empty(checkpoints_folder(run_dir)));
  }
}

TEST_F(CheckpointTest, AFolderThatCannotBeMadeFailsOnEveryRank) {
  std::filesystem::create_directories(run_dir);
  overwrite(checkpoints_folder(run_dir), "a file where the folder should be");
  for (const auto& error : save(3, 2)) {
    EXPECT_NE(error.find("checkpoint: the checkpoint of step 3 was not written: cannot create folder"),
              std::string::npos)
        << error;
    EXPECT_NE(error.find("File exists"), std::string::npos) << error;
  }
}

TEST_F(CheckpointTest, AFolderThatIsNotWritableFailsWithWhatToDo) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  std::filesystem::create_directories(checkpoints_folder(run_dir));
  ::chmod(checkpoints_folder(run_dir).c_str(), 0555);
  for (const auto& error : save(3, 2))
    EXPECT_NE(error.find("make the run folder writable"), std::string::npos) << error;
}

}  // namespace
}  // namespace ananke
