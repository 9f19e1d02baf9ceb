// Exports and imports that are killed at any moment: under the name that was asked for stands nothing, the old file, or
// all of the new one; and the next attempt works and tidies up.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "runtime/base/hash.h"
#include "runtime/base/random.h"
#include "tests/system/command_process.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

using Clock = std::chrono::steady_clock;

class KillWriters : public ::testing::Test {
 protected:
  std::string run(const std::vector<std::string>& words) const {
    CommandProcess process(words, folder / "output");
    EXPECT_EQ(process.wait(), 0) << process.output();
    return process.output();
  }
  // Kills `rounds` such commands: every other one at some moment within the time that one takes, the others once there
  // is a file that they write. `check` looks at what each leaves. Returns how many were alive when they were killed.
  int kill_all(const std::vector<std::string>& words, int rounds, double seconds, const std::function<void()>& check) {
    int killed = 0;
    for (int round = 0; round < rounds; ++round) {
      const std::set<std::string> before = partials();
      CommandProcess process(words, folder / "output");
      const double part = std::uniform_real_distribution(0.0, 1.1)(random);
      if (round % 2 == 0) {
        std::this_thread::sleep_for(std::chrono::duration<double>(seconds * part));
      } else {
        while (process.running() && is_subset(partials(), before)) {
          std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
      }
      killed += process.running();
      if (process.running()) kill(process.pid(), SIGKILL);
      process.wait();
      check();
      if (HasFailure()) return 0;
    }
    return killed;
  }
  std::set<std::string> partials() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      const std::string name = entry.path().filename().string();
      if (name.find(".partial.") != std::string::npos) names.insert(name);
    }
    return names;
  }
  static bool is_subset(const std::set<std::string>& some, const std::set<std::string>& of) {
    return std::ranges::includes(of, some);
  }
  static double seconds_of(const std::function<void()>& work) {
    const auto begin = Clock::now();
    work();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  TemporaryFolder folder;
  std::mt19937 random{11};
};

TEST_F(KillWriters, Export) {
  folder.write("job.textproto", R"(
name: "to export"
run_dir: "set by the test"
model { vocab_size: 8192 hidden_size: 128 num_hidden_layers: 2 num_attention_heads: 2 num_key_value_heads: 1
        head_dim: 64 num_experts: 8 num_experts_per_tok: 2 moe_intermediate_size: 128 }
training { steps: 1 sequence_length: 32 rows_per_step: 1 }
data { generated { documents: 16 shortest: 8 longest: 64 } }
optimizer { use: "adamw" }
)");
  run({"run", (folder / "job.textproto").string(), "--run-dir", (folder / "run").string()});
  const std::filesystem::path out = folder / "hf";
  const auto words = [&](const std::filesystem::path& to) {
    return std::vector<std::string>{
        "export", (folder / "run").string(), "--output", to.string(), "--dtype", "fp32", "--shard-size", "1MB"};
  };
  const double seconds = seconds_of([&] { run(words(folder / "whole")); });
  const auto content = [](const std::filesystem::path& of) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(of)) {
      files[entry.path().filename().string()] = hash_file(entry.path());
    }
    return files;
  };
  const auto whole = content(folder / "whole");
  EXPECT_GT(whole.size(), 5u);
  std::size_t left = 0;
  const int killed = kill_all(words(out), 40, seconds, [&] {
    left = std::max(left, partials().size());
    if (!std::filesystem::exists(out)) return;
    EXPECT_EQ(content(out), whole);
    std::filesystem::remove_all(out);
  });
  EXPECT_GT(killed, 10);
  EXPECT_GT(left, 0u) << "no kill came while files were written";
  EXPECT_LE(left, 1u) << "each removes what the one before it left";
  run(words(out));
  EXPECT_EQ(content(out), whole);
  EXPECT_TRUE(partials().empty());
}

TEST_F(KillWriters, Import) {
  const RandomKey key(3, "text");
  std::string text;
  for (std::uint64_t i = 0; text.size() < 6'000'000; ++i) text += fmt::format("line {} of {}\n", i, key.below(i, 9999));
  const std::string big = folder.write("big.txt", text).string(),
                    small = folder.write("small.txt", text.substr(0, 1'000'000)).string();
  const std::filesystem::path store = folder / "store.h5", model = folder / "m.model";
  const auto words = [&](const std::filesystem::path& to, const std::vector<std::string>& more) {
    std::vector<std::string> all{"data", "import", "--output", to.string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  run(words(folder / "old.h5", {small}));
  run(words(folder / "x.h5",
            {"--tokenizer", model.string(), "--train-tokenizer", "280", "--train-bytes", "100kB", small, big}));
  const std::vector<std::vector<std::string>> ways = {
      {big}, {"--source", big + ":1", "--source", small + ":1"}, {"--tokenizer", model.string(), "--jobs", "2", big}};
  for (const std::vector<std::string>& way : ways) {
    const double seconds = seconds_of([&] { run(words(folder / "new.h5", way)); });
    const std::string old = hash_file(folder / "old.h5"), whole = hash_file(folder / "new.h5");
    ASSERT_NE(old, whole);
    std::filesystem::copy_file(folder / "old.h5", store, std::filesystem::copy_options::overwrite_existing);
    std::size_t left = 0;
    const int killed = kill_all(words(store, way), 15, seconds, [&] {
      left = std::max(left, partials().size());
      const std::string now = hash_file(store);
      EXPECT_TRUE(now == old || now == whole);
      if (now == whole) {
        std::filesystem::copy_file(folder / "old.h5", store, std::filesystem::copy_options::overwrite_existing);
      }
    });
    EXPECT_GT(killed, 3);
    EXPECT_GT(left, 0u);
    const std::string output = run(words(store, way));
    EXPECT_EQ(hash_file(store), whole) << output;
    EXPECT_TRUE(partials().empty());
  }
}

}  // namespace
}  // namespace ananke
