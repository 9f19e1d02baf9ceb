#include "runtime/checkpoint/reader.h"

#include "ananke/checkpoint.pb.h"
#include "runtime/base/hash.h"
#include "tests/refusal.h"
#include "tests/runtime/checkpoint/checkpoint_fixture.h"

namespace ananke {
namespace {

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void overwrite(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

class ReaderTest : public CheckpointTest {
 protected:
  std::string refused(const std::filesystem::path& path) {
    return refusal(ErrorKind::checkpoint, [&] { CheckpointReader reader(path); });
  }
  // Every tensor, read in pieces, is that of the step.
  static void expect_step(CheckpointReader& reader, std::uint64_t step) {
    EXPECT_EQ(reader.index().step(), step);
    EXPECT_EQ(reader.job().name(), "made up");
    for (const TestTensor& tensor : test_tensors()) {
      const std::int64_t size = tensor.shape.elements();
      for (std::int64_t begin = 0; begin < size; begin += 50) {
        std::vector<float> piece(static_cast<std::size_t>(std::min<std::int64_t>(50, size - begin)));
        reader.read(tensor.parameter, tensor.state, tensor.shape, begin, piece);
        for (std::size_t i = 0; i < piece.size(); ++i) {
          ASSERT_EQ(piece[i], test_value(tensor, step, begin + static_cast<std::int64_t>(i))) << tensor.parameter;
        }
      }
    }
  }
  // Replaces a file of the checkpoint and vouches for it.
  void forge(std::uint64_t step, const std::string& name, const std::string& bytes) {
    const auto folder = step_folder(step);
    CheckpointIndex index = read_index(folder, inspect_checkpoint(folder).index_hash);
    overwrite(folder / name, bytes);
    for (CheckpointFile& file : *index.mutable_files()) {
      if (file.name() != name) continue;
      file.set_bytes(bytes.size());
      file.set_hash(hash_hex(bytes));
    }
    write_index(folder, index);
  }
};

TEST_F(ReaderTest, RefusesWhatIsNoCheckpoint) {
  EXPECT_NAMES(refused(run_dir), "is no folder");
  std::filesystem::create_directories(run_dir);
  EXPECT_NAMES(refused(run_dir), "there is no checkpoint in");
  ASSERT_EQ(save(1, 2), all_of(2, ""));
  overwrite(step_folder(1) / "rank-0001.h5", "");
  EXPECT_NAMES(refused(step_folder(1)), "rank-0001.h5 has 0 bytes");
  EXPECT_NAMES(refused(run_dir), "none of the checkpoints");
}

TEST_F(ReaderTest, RefusesATensorOfAnotherModel) {
  ASSERT_EQ(save(1, 2), all_of(2, ""));
  CheckpointReader reader(run_dir);
  std::vector<float> out(3);
  const auto read = [&](const char* parameter, const char* state, const Shape& shape) {
    return refusal(ErrorKind::checkpoint, [&] { reader.read(parameter, state, shape, 0, out); });
  };
  EXPECT_NAMES(read("model.norm.weight", "weight", {4}), "model.norm.weight is [3] in it and [4] in the job");
  EXPECT_NAMES(read("model.norm.weight", "momentum", {3}), "it holds no 'momentum' of model.norm.weight");
  EXPECT_NAMES(read("lm_head.weight", "weight", {3}), "it holds no 'weight' of lm_head.weight");
}

TEST_F(ReaderTest, ReadsACheckpointOrTheNewestUsableOneOfARun) {
  ASSERT_EQ(save(1, 3), all_of(3, ""));
  ASSERT_EQ(save(2, 4), all_of(4, ""));
  const auto open = [&](const std::filesystem::path& path, std::uint64_t step) {
    CheckpointReader reader(path);
    expect_step(reader, step);
  };
  open(step_folder(1), 1);
  open(run_dir, 2);
  open(run_dir / "", 2);
  open(checkpoints_folder(run_dir), 2);
  std::filesystem::copy(step_folder(1), run_dir / "copied elsewhere");
  open(run_dir / "copied elsewhere", 1);
  std::string bytes = bytes_of(step_folder(2) / "rank-0003.h5");
  bytes[bytes.size() - 1] = static_cast<char>(bytes[bytes.size() - 1] ^ 1);
  overwrite(step_folder(2) / "rank-0003.h5", bytes);
  open(run_dir, 1);
}

TEST_F(ReaderTest, HasTheNewSuperblockAndTakesNoOther) {
  ASSERT_EQ(save(1, 2), all_of(2, ""));
  const std::string bytes = bytes_of(step_folder(1) / "rank-0000.h5");
  ASSERT_EQ(bytes.substr(0, 9), "\x89HDF\r\n\x1a\n\x03");
  for (const char version : {0, 1, 2, 4}) {
    std::string older = bytes;
    older[8] = version;
    forge(1, "rank-0000.h5", older);
    for (const std::string& result : load(2)) {
      EXPECT_NE(result.find(fmt::format("superblock of version {}; only version 3", int{version})), result.npos)
          << result;
    }
  }
  forge(1, "rank-0000.h5", "no HDF5 at all");
  for (const std::string& result : load(2)) EXPECT_NE(result.find("is no HDF5 file"), result.npos) << result;
  forge(1, "rank-0000.h5", bytes);
  EXPECT_EQ(load(2), all_of(2, "step 1"));
}

TEST_F(ReaderTest, VerifyNamesWhatIsWrongInAFileThatIsVouchedFor) {
  ASSERT_EQ(save(1, 2), all_of(2, ""));
  EXPECT_TRUE(verify_checkpoint(step_folder(1)).problems.empty());
  // One value of a tensor's data, which HDF5 itself has no checksum for.
  const TestTensor tensor = test_tensors()[1];
  const float value = test_value(tensor, 1, 5), other = value + 1;
  std::string bytes = bytes_of(step_folder(1) / "rank-0000.h5");
  const std::size_t at = bytes.find(std::string(reinterpret_cast<const char*>(&value), sizeof value));
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, sizeof other, reinterpret_cast<const char*>(&other), sizeof other);
  forge(1, "rank-0000.h5", bytes);
  const CheckpointReport report = verify_checkpoint(step_folder(1));
  ASSERT_EQ(report.problems.size(), 1u);
  EXPECT_NAMES(report.problems[0], "rank-0000.h5: 'exp_avg' of model.embed_tokens.weight: its data have the checksum");
}

}  // namespace
}  // namespace ananke
