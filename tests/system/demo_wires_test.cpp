// The demo's job against the one that saves what slow links move: equal steps, equal data, this tree's sources as text.
#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "ananke/telemetry.pb.h"
#include "runtime/base/error.h"
#include "tests/system/command_process.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

constexpr int steps = 60, last_steps = 10;

struct Outcome {
  double training = 0, held_out = 0;           // the mean loss of the last steps; after the last
  std::map<std::string, std::uint64_t> bytes;  // of the last step: "axis direction"
};

class DemoWires : public testing::Test {
 protected:
  // Jobs name their stores and run folders from the current one.
  DemoWires() : before_(fs::current_path()) {
    fs::current_path(folder_.path());
    import("train", {"runtime"});
    import("heldout", {"plugins/fsdp", "plugins/ep"});
  }
  ~DemoWires() override { fs::current_path(before_); }

  void expect_done(const std::vector<std::string>& words) const {
    CommandProcess process(words, folder_ / "output");
    ASSERT_EQ(process.wait(std::chrono::minutes(30)), 0) << process.output();
  }
  void import(const std::string& store, const std::vector<std::string>& sources) const {
    const fs::path text = folder_ / "text" / store;
    fs::create_directories(text);
    int documents = 0;
    for (const std::string& source : sources) {
      for (const auto& entry : fs::recursive_directory_iterator(fs::path(ANANKE_SOURCE_DIR) / source)) {
        const std::string extension = entry.path().extension();
        if (extension != ".cpp" && extension != ".h") continue;
        fs::copy_file(entry.path(), text / fmt::format("{}-{}.txt", documents++, entry.path().filename().string()));
      }
    }
    fs::create_directories(folder_ / "runs" / "demo");
    expect_done({"data", "import", "--tokenizer", "bytes", "--output", "runs/demo/" + store + ".h5", text.string()});
  }
  Outcome run(const std::string& job, const std::string& run_folder) const {
    expect_done({"run", ANANKE_SOURCE_DIR "/site/local/jobs/" + job + ".textproto", "--ranks", "4", "--set",
                 fmt::format("training.steps={}", steps), "--set", "checkpoint.every_steps=0"});
    Outcome outcome;
    int seen = 0;
    std::ifstream stream(folder_ / "runs" / "demo" / run_folder / "steps.jsonl");
    for (std::string text; std::getline(stream, text);) {
      TelemetryLine line;
      if (!google::protobuf::util::JsonStringToMessage(text, &line).ok()) continue;
      if (line.has_evaluation()) outcome.held_out = line.evaluation().loss();
      if (!line.has_step()) continue;
      if (++seen > steps - last_steps) outcome.training += line.step().loss() / last_steps;
      outcome.bytes.clear();
      for (const TrafficRecord& moved : line.step().traffic()) {
        outcome.bytes[moved.axis() + " " + moved.direction()] += moved.bytes();
      }
    }
    EXPECT_EQ(seen, steps);
    return outcome;
  }

 private:
  TemporaryFolder folder_;
  fs::path before_;
};

TEST_F(DemoWires, ReachALossNoWorseThanAdamwWithFp32WiresAtEqualSteps) {
  const Outcome wide = run("demo", "run"), narrow = run("demo_wires", "run_wires");
  for (const auto& [name, outcome] : {std::pair{"adamw, fp32 wires", &wide}, {"muon, fp8 and bf16 wires", &narrow}}) {
    fmt::print("{:25} loss of the last {} of {} steps {:.4f}, held out {:.4f}\n", name, last_steps, steps,
               outcome->training, outcome->held_out);
    EXPECT_LT(outcome->training, 4.0);
  }
  EXPECT_LE(narrow.training, wide.training);
  EXPECT_LE(narrow.held_out, wide.held_out);
  // Of dense units, which both cut over four ranks: a byte for four, and two for four.
  EXPECT_LT(narrow.bytes.at("shard gather"), wide.bytes.at("shard gather") * 3 / 10);
  EXPECT_LT(narrow.bytes.at("shard reduce"), wide.bytes.at("shard reduce") * 6 / 10);
  EXPECT_GT(narrow.bytes.at("expert dispatch"), 0u);
}

}  // namespace
}  // namespace ananke
