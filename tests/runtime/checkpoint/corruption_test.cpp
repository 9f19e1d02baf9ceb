// Random damage to every kind of file of a checkpoint: never a wrong load, never a lost older checkpoint.
#include "runtime/base/random.h"
#include "runtime/checkpoint/reader.h"
#include "tests/runtime/checkpoint/checkpoint_fixture.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) files[entry.path().filename()] = bytes_of(entry.path());
  return files;
}

void restore(const fs::path& folder, const std::map<std::string, std::string>& files) {
  fs::remove_all(folder);
  fs::create_directories(folder);
  for (const auto& [name, bytes] : files) std::ofstream(folder / name, std::ios::binary) << bytes;
}

// Numbers for one round, all different.
class Dice {
 public:
  Dice(const char* name, std::uint64_t round) : random_(7, name), at_(round * 16) {}
  std::uint64_t below(std::uint64_t limit) { return random_.below(at_++, limit); }

 private:
  RandomKey random_;
  std::uint64_t at_;
};

using Damage = std::function<void(const fs::path& file, std::string bytes, Dice& dice)>;

void flip_bit(const fs::path& file, std::string bytes, Dice& dice) {
  const std::size_t at = dice.below(bytes.size());
  bytes[at] = static_cast<char>(bytes[at] ^ (1 << dice.below(8)));
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

void cut(const fs::path& file, std::string bytes, Dice& dice) { fs::resize_file(file, dice.below(bytes.size())); }

// What a disk that lies leaves: the right length, a stretch of it never written.
void zero_stretch(const fs::path& file, std::string bytes, Dice& dice) {
  const std::size_t at = dice.below(bytes.size());
  const std::size_t count = 1 + dice.below(std::min<std::size_t>(bytes.size() - at, 4096));
  const std::string before = bytes;
  std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), count, '\0');
  if (bytes == before) bytes[at] = '\1';
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

void remove_file(const fs::path& file, std::string, Dice&) { fs::remove(file); }

class Corruption : public CheckpointTest {
 protected:
  static constexpr int ranks = 3;

  void SetUp() override {
    CheckpointTest::SetUp();
    ASSERT_EQ(save(1, ranks), all_of(ranks, ""));
    ASSERT_EQ(save(2, ranks), all_of(ranks, ""));
    older_ = contents(step_folder(1));
    newer_ = contents(step_folder(2));
  }

  // Damages one file of the newer one: the older one is loaded, on any number of ranks, and stays as it is.
  void expect_older(const char* name, std::uint64_t rounds, const Damage& damage) {
    for (std::uint64_t round = 0; round < rounds; ++round) {
      Dice dice(name, round);
      const auto file = std::next(newer_.begin(), static_cast<std::ptrdiff_t>(dice.below(newer_.size())));
      SCOPED_TRACE(fmt::format("{} round {}, {}", name, round, file->first));
      damage(step_folder(2) / file->first, file->second, dice);
      const int readers = 1 + static_cast<int>(dice.below(4));
      for (const std::string& result : load(readers)) {
        EXPECT_EQ(result.substr(0, 7), "step 1\n") << result;
        EXPECT_NE(result.find("step-00000002: "), std::string::npos) << result;
      }
      EXPECT_FALSE(verify_checkpoint(step_folder(2)).problems.empty());
      EXPECT_EQ(contents(step_folder(1)), older_);
      restore(step_folder(2), newer_);
    }
    EXPECT_EQ(load(ranks), all_of(ranks, "step 2"));
  }

  std::map<std::string, std::string> older_, newer_;
};

TEST_F(Corruption, AHundredFlippedBits) { expect_older("flip", 100, flip_bit); }
TEST_F(Corruption, AHundredTruncations) { expect_older("cut", 100, cut); }
TEST_F(Corruption, FiftyStretchesOfZeros) { expect_older("zeros", 50, zero_stretch); }
TEST_F(Corruption, FilesThatAreGone) { expect_older("gone", 20, remove_file); }

TEST_F(Corruption, OfEveryCheckpointIsAnErrorAndNotAnEmptyStart) {
  for (std::uint64_t round = 0; round < 20; ++round) {
    Dice dice("both", round);
    for (const std::uint64_t step : {1, 2}) {
      const auto& files = step == 1 ? older_ : newer_;
      const auto file = std::next(files.begin(), static_cast<std::ptrdiff_t>(dice.below(files.size())));
      (dice.below(2) == 0 ? flip_bit : cut)(step_folder(step) / file->first, file->second, dice);
    }
    for (const std::string& result : load(ranks)) {
      EXPECT_NE(result.find("checkpoint: none of the 2 checkpoints"), std::string::npos) << result;
    }
    restore(step_folder(1), older_);
    restore(step_folder(2), newer_);
  }
}

// Files of one checkpoint that stand in another are of the right size, and whole.
TEST_F(Corruption, FilesOfAnotherStepAreFound) {
  for (const auto& [name, bytes] : older_) {
    std::ofstream(step_folder(2) / name, std::ios::binary | std::ios::trunc) << bytes;
    for (const std::string& result : load(ranks)) EXPECT_EQ(result.substr(0, 7), "step 1\n") << name << ": " << result;
    restore(step_folder(2), newer_);
  }
}

TEST_F(Corruption, AGoodCheckpointIsFoundGood) {
  const CheckpointReport report = verify_checkpoint(step_folder(2));
  EXPECT_TRUE(report.problems.empty());
  EXPECT_EQ(report.files, 3u);
  EXPECT_EQ(report.fragments, 15u);  // 5 tensors, each cut over the ranks
}

}  // namespace
}  // namespace ananke
