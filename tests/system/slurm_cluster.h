// The local Slurm cluster of the tests labelled slurm, jobs on it, and what became of them.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "launcher/slurm/command.h"
#include "runtime/base/error.h"
#include "tests/system/command_process.h"

namespace ananke {

class SlurmTest : public ::testing::Test {
 protected:
  static constexpr const char* tool = ANANKE_SOURCE_DIR "/ops/local-cluster";
  static constexpr const char* ananke = ANANKE_BINARY_DIR "/bin/ananke";
  using milliseconds = std::chrono::milliseconds;

  void SetUp() override {
    const CommandOutput check = run_command({tool, "check"}, milliseconds(20'000));
    if (check.code != 0) GTEST_SKIP() << check.errors;
    const CommandOutput status = run_command({tool, "status", "--name", ANANKE_TEST_CLUSTER}, milliseconds(20'000));
    if (status.code != 0) GTEST_SKIP() << status.errors;
    setenv("SLURM_CONF", "/run/ananke-cluster/" ANANKE_TEST_CLUSTER "/etc/slurm.conf", 1);
    std::string pattern = "/tmp/ananke-slurm-test.XXXXXX";  // a folder that all nodes have
    folder = mkdtemp(pattern.data());
    write("job.textproto", job_text);
    write("site.textproto", "name: \"cluster\" start: SRUN network_interface: \"eth0\"\n");
  }
  void TearDown() override {
    if (folder.empty()) return;
    for (const std::string& job : jobs) run_command({"scancel", "--signal=KILL", "--full", job}, milliseconds(10'000));
    for (const std::string& job : jobs) wait_for_end(job);
    if (HasFailure()) {
      for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        if (entry.path().extension() == ".out") std::printf("--- %s\n%s", entry.path().c_str(), text_of(entry).c_str());
      }
    }
    std::filesystem::remove_all(folder);
  }

  void write(const std::string& name, const std::string& text) const { std::ofstream(folder / name) << text; }

  // Submits `ananke run` of job.textproto as a batch script, which is the launcher itself after `before`. The job's
  // number.
  std::string submit(const std::vector<std::string>& sbatch, const std::vector<std::string>& more = {},
                     const std::string& run = "run", const std::string& before = "") {
    std::vector<std::string> command{"exec",      ananke,
                                     "run",       (folder / "job.textproto").string(),
                                     "--site",    (folder / "site.textproto").string(),
                                     "--run-dir", (folder / run).string()};
    command.insert(command.end(), more.begin(), more.end());
    std::vector<std::string> words{"sbatch", "--parsable", "--open-mode=append",
                                   "--output=" + (folder / (run + ".out")).string()};
    words.insert(words.end(), sbatch.begin(), sbatch.end());
    words.push_back("--wrap=" + before + quote_words(command));
    std::string job = output_of(words, milliseconds(20'000));
    while (!job.empty() && job.back() == '\n') job.pop_back();
    jobs.push_back(job);
    return job;
  }
  // A field of `scontrol show job`: "JobState", "ExitCode" ("0:0"), "Restarts".
  static std::string field(const std::string& job, const std::string& name) {
    const CommandOutput said = run_command({"scontrol", "show", "job", "--oneliner", job}, milliseconds(10'000));
    const auto at = (" " + said.output).find(" " + name + "=");
    if (at == std::string::npos) return "";
    const auto begin = at + name.size() + 1;
    return said.output.substr(begin, said.output.find_first_of(" \n", begin) - begin);
  }
  // The state it ended in; "" where it has not within two minutes.
  static std::string wait_for_end(const std::string& job) {
    return wait_for_state(job, {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"});
  }
  static std::string wait_for_state(const std::string& job, const std::vector<std::string>& states) {
    for (const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(2);
         std::chrono::steady_clock::now() < until;) {
      const std::string state = field(job, "JobState");
      for (const std::string& one : states) {
        if (state == one) return state;
      }
      std::this_thread::sleep_for(milliseconds(100));
    }
    return "";
  }
  // Waits until the job's output has this.
  bool says(const std::string& text, const std::string& run = "run") const {
    for (int i = 0; i < 600; ++i) {
      if (text_of(folder / (run + ".out")).find(text) != std::string::npos) return true;
      std::this_thread::sleep_for(milliseconds(100));
    }
    return false;
  }
  // What "on NODE (...), process 41" in a rank's newest log says.
  struct Place {
    std::string node, process, text;
  };
  Place place_of(int rank, const std::string& run = "run") const {
    const std::string log = text_of(folder / run / "logs" / fmt::format("rank-{}.log", rank));
    const auto at = log.rfind(fmt::format("rank {} of ", rank));
    if (at == std::string::npos) return {};
    const std::string line = log.substr(at, log.find('\n', at) - at);
    const auto between = [&](const std::string& begin, const std::string& end) {
      const auto from = line.find(begin) + begin.size();
      return line.substr(from, line.find(end, from) - from);
    };
    return {between(" on ", " "), between(", process ", ","), line};
  }
  static CommandOutput on_node(const std::string& node, std::vector<std::string> words) {
    words.insert(words.begin(), {tool, "exec", "--name", ANANKE_TEST_CLUSTER, node});
    return run_command(words, milliseconds(10'000));
  }
  static void cut(const std::string& node) {
    run_command({tool, "cut", "--name", ANANKE_TEST_CLUSTER, node}, milliseconds(10'000));
  }
  // Gives the network back, and waits until Slurm has the node again: the next test wants it.
  static void heal(const std::string& node) {
    run_command({tool, "heal", "--name", ANANKE_TEST_CLUSTER, node}, milliseconds(10'000));
    const std::vector<std::string> words{"sinfo", "--noheader", "--Node", "--nodes=" + node, "--format=%T"};
    for (int i = 0; i < 450 && run_command(words, milliseconds(10'000)).output != "idle\n"; ++i) {
      std::this_thread::sleep_for(milliseconds(200));
    }
  }
  // Processes of this test's run folder that a node still has.
  std::string processes_on(const std::string& node) const {
    return on_node(node, {"pgrep", "-af", "worker --job " + folder.string()}).output;
  }
  // The losses as they stand in the file: the same digits are the same bits.
  std::vector<std::string> losses(const std::string& run) const {
    std::vector<std::string> found;
    std::ifstream lines(folder / run / "steps.jsonl");
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("{\"step\":{")) continue;
      const auto at = line.find("\"loss\":");
      found.push_back(line.substr(at, line.find(',', at) - at));
    }
    return found;
  }

  static constexpr const char* job_text = R"(
name: "cluster"
run_dir: "set by the test"
model { vocab_size: 64 hidden_size: 32 num_hidden_layers: 2 num_attention_heads: 4 num_key_value_heads: 2 head_dim: 8
        num_experts: 4 num_experts_per_tok: 2 moe_intermediate_size: 32 tie_word_embeddings: true }
mesh { replicate: 1 shard: 4 }
training { steps: 100000 sequence_length: 32 rows_per_step: 8 rows_per_microbatch: 2 clip_norm: 1.0 }
data { generated { documents: 512 shortest: 8 longest: 64 branches: 4 } }
optimizer { match: ".*" use: "adamw" }
)";
  std::filesystem::path folder;
  std::vector<std::string> jobs;
};

}  // namespace ananke
