// Whatever a stranger's plugin does wrong, the run ends with its name, its file and the method.
#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/base/error.h"
#include "tests/system/command_process.h"

namespace ananke {
namespace {

constexpr const char* job_text = R"(
name: "faulty"
run_dir: "set by the test"
model { vocab_size: 64 hidden_size: 16 num_hidden_layers: 1 num_attention_heads: 2 num_key_value_heads: 2 head_dim: 8
        num_experts: 4 num_experts_per_tok: 2 moe_intermediate_size: 16 tie_word_embeddings: true }
mesh { replicate: 1 shard: 2 }
training { steps: 3 sequence_length: 16 rows_per_step: 4 }
data { generated { documents: 64 shortest: 8 longest: 32 branches: 4 } }
plugins { use: "faulty_optimizer" }
optimizer { match: "norm" use: "faulty_optimizer" }
optimizer { match: ".*" use: "adamw" }
)";

struct Fault {
  std::string plugin, fault;
  ErrorKind code;
  std::string method;  // empty: the plugin is not named
  std::string words;
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.plugin << ' ' << fault.fault; }

class FaultyPlugins : public ::testing::TestWithParam<Fault> {
 protected:
  FaultyPlugins() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ananke-faulty-test.XXXXXX").string();
    folder = mkdtemp(pattern.data());
    std::ofstream(folder / "job.textproto") << job_text;
    // Long enough for a busy machine, short where the wait is what is tested.
    const bool hangs = GetParam().code == ErrorKind::stalled;
    std::ofstream(folder / "site.textproto")
        << fmt::format("name: \"test\" start: LOCAL deadlines {{ step: \"{}\" grace: \"1s\" }}", hangs ? "6s" : "60s");
    setenv("ANANKE_PLUGIN_PATH", ANANKE_BINARY_DIR "/tests/faulty_plugins", 1);
  }
  ~FaultyPlugins() override { std::filesystem::remove_all(folder); }
  std::filesystem::path folder;
};

TEST_P(FaultyPlugins, AreNamed) {
  const Fault& fault = GetParam();
  const std::string plugin = "faulty_" + fault.plugin;
  CommandProcess job({"run", (folder / "job.textproto").string(), "--run-dir", (folder / "run").string(), "--site",
                      (folder / "site.textproto").string(), "--set", "plugins." + plugin + ".fault=" + fault.fault},
                     folder / "output");
  EXPECT_EQ(job.wait(), static_cast<int>(fault.code)) << job.output();
  const std::string named =
      "plugin '" + plugin + "' (" + ANANKE_BINARY_DIR + "/tests/faulty_plugins/" + plugin + ".so)";
  const std::string expected = fault.method.empty() ? fault.words : named + ", in " + fault.method;
  EXPECT_NE(job.output().find(expected), std::string::npos) << job.output();
  EXPECT_NE(job.output().find(fault.words), std::string::npos) << job.output();
  const bool blamed = job.output().find(named) != std::string::npos;
  EXPECT_EQ(blamed, !fault.method.empty()) << job.output();
}

const Fault faults[] = {
    {"optimizer", "THROW", ErrorKind::plugin, "update", "update: a word of its own"},
    {"optimizer", "THROW_INT", ErrorKind::plugin, "update", "no std::exception"},
    {"optimizer", "THROW_ON_STREAM", ErrorKind::plugin, "update", "update: a word of its own"},
    {"optimizer", "PEER_LOST", ErrorKind::worker_failed, "", "rank 3 is gone"},
    {"optimizer", "CRASH", ErrorKind::worker_failed, "update", "SIGSEGV): inside plugin"},
    {"optimizer", "CRASH_ON_STREAM", ErrorKind::worker_failed, "update", "SIGSEGV): inside plugin"},
    {"optimizer", "CRASH_IN_CONSTRUCTOR", ErrorKind::worker_failed, "its constructor", "SIGSEGV): inside plugin"},
    {"optimizer", "ABORT", ErrorKind::worker_failed, "update", "SIGABRT): inside plugin"},
    {"optimizer", "HANG", ErrorKind::stalled, "update", "made no progress for"},
    {"optimizer", "HANG_ON_STREAM", ErrorKind::stalled, "update", "made no progress for"},
    {"optimizer", "STATE_WITHOUT_NAME", ErrorKind::plugin, "states", "a state named ''"},
    {"batches", "NO_ROWS", ErrorKind::plugin, "next", "0 rows of 0 tokens and says that its source has ended"},
    {"batches", "SHORT_TARGETS", ErrorKind::plugin, "next", "have 32 tokens, 1 targets"},
    {"batches", "FOREIGN_TOKEN", ErrorKind::plugin, "next", "token 1000000, target 2 (vocabulary 64)"},
    {"batches", "WRONG_COUNT", ErrorKind::plugin, "next", "33 targets are valid, but 32 are"},
    {"batches", "NO_SEGMENT", ErrorKind::plugin, "next", "segments of row 0"},
    {"experts", "NEGATIVE_CAPACITY", ErrorKind::plugin, "capacity", "-1 rows"},
    {"experts", "HUGE_WORKSPACE", ErrorKind::plugin, "workspace", "1152921504606846976 bytes"},
    {"experts", "NO_CHUNKS", ErrorKind::plugin, "chunks", "a microbatch of 0 chunks"},
    {"experts", "NAMELESS_PLAN", ErrorKind::plugin, "plan", "give every line a purpose"},
    {"experts", "SHORT_CHUNK", ErrorKind::plugin, "dispatch_end", "expert"},
};

INSTANTIATE_TEST_SUITE_P(Runs, FaultyPlugins, ::testing::ValuesIn(faults),
                         [](const auto& one) { return one.param.plugin + "_" + one.param.fault; });

}  // namespace
}  // namespace ananke
