// On GPUs: what is measured, and a GPU that somebody uses.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "runtime/config/site.h"
#include "runtime/health/check_set.h"
#include "runtime/health/children.h"
#include "runtime/health/gpu_reader.h"
#include "runtime/health/report.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

class GpuChecks : public ::testing::Test {
 protected:
  void SetUp() override {
    // Asked in another process: one that has used CUDA cannot fork and use it again.
    const ChildTask task{std::chrono::seconds(60), [] { return read_node_gpus("/").SerializeAsString(); }};
    const auto outcome = run_children({task}, 1, std::chrono::steady_clock::now() + task.deadline).front();
    if (!gpus.ParseFromString(outcome.output) || gpus.gpu().empty()) GTEST_SKIP() << "no GPU: " << gpus.problem();
    std::filesystem::create_symlink(ANANKE_BINARY_DIR "/lib/ananke/node_checks.so", plugins / "node_checks.so");
    std::filesystem::create_symlink(ANANKE_BINARY_DIR "/lib/ananke/gpu_checks.so", plugins / "gpu_checks.so");
    site.set_name("here");
    site.mutable_hardware()->set_gpus(static_cast<std::uint32_t>(gpus.gpu_size()));
    site.mutable_health();
    site.mutable_memory();
  }

  NodeHealth run(HealthLevel level) const {
    CheckOptions options;
    options.level = level;
    options.node = "here";
    options.user = getuid();
    options.patience = 4;
    const NodeHealth node = CheckSet(site, {plugins.path()}).run(options);
    for (const CheckResult& check : node.check()) {
      std::printf("%-16s %-8s %s\n", check.id().c_str(), HealthVerdict_Name(check.verdict()).c_str(),
                  check.reason().c_str());
    }
    return node;
  }
  static CheckResult find(const NodeHealth& node, const std::string& id) {
    for (const CheckResult& check : node.check()) {
      if (check.id() == id) return check;
    }
    ADD_FAILURE() << "no check " << id;
    return {};
  }
  bool all_are(const std::string& name) const {
    for (const GpuFacts& gpu : gpus.gpu()) {
      if (gpu.name().find(name) == std::string::npos) return false;
    }
    return true;
  }

  TemporaryFolder plugins;
  NodeGpus gpus;
  Site site;
};

TEST_F(GpuChecks, NvmlTellsWhatTheChecksWant) {
  const NodeHealth node = run(QUICK);
  for (const char* id : {"gpu.count", "gpu.driver", "gpu.remap", "gpu.ecc", "gpu.context"}) {
    EXPECT_EQ(find(node, id).verdict(), PASS) << id << ": " << find(node, id).reason();
  }
}

// baseline: 737 TFLOP/s, copies of 4,237 GB/s inside of a GPU and 55 GB/s to and from the host, 315 GB/s by NCCL.
TEST_F(GpuChecks, RatesAreThoseOfTheHardware) {
  const NodeHealth node = run(FULL);
  for (const char* id : {"gpu.matmul", "gpu.copy", "nccl.pairs", "nccl.all"}) {
    const CheckResult check = find(node, id);
    EXPECT_TRUE(check.verdict() == PASS || (gpus.gpu_size() == 1 && check.verdict() == SKIPPED)) << check.reason();
    if (!all_are("H200")) continue;
    for (const HealthValue& value : check.value()) {
      const double least = value.name() == "matmul"             ? 600
                           : value.name() == "device_to_device" ? 3500
                           : value.name() == "pair"             ? 80
                           : value.name() == "all"              ? 200
                                                                : 40;
      EXPECT_GT(value.number(), least) << value.name() << ' ' << value.entity();
    }
  }
}

TEST_F(GpuChecks, AGpuThatSomebodyUsesIsNoDefect) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t user = fork();
  if (user == 0) {
    void* memory = nullptr;
    const char word = cudaSetDevice(0) == cudaSuccess && cudaMalloc(&memory, std::size_t{8} << 30) == cudaSuccess &&
                              cudaMemset(memory, 1, std::size_t{8} << 30) == cudaSuccess &&
                              cudaDeviceSynchronize() == cudaSuccess
                          ? '+'
                          : '-';
    if (write(ready[1], &word, 1) != 1) _exit(1);
    for (;;) pause();
  }
  close(ready[1]);
  char word = 0;
  const ssize_t got = read(ready[0], &word, 1);
  close(ready[0]);
  const NodeHealth node = run(QUICK);
  kill(user, SIGKILL);
  waitpid(user, nullptr, 0);
  ASSERT_TRUE(got == 1 && word == '+');
  bool seen = false;
  for (const CheckResult& check : node.check()) {
    if (!check.id().starts_with("gpu.") || check.verdict() != FAIL) continue;
    EXPECT_EQ(HealthCause_Name(check.cause()), "IN_USE") << check.id() << ": " << check.reason();
    seen = true;
  }
  EXPECT_TRUE(seen);
  const HealthReport report = make_report({{.node = "here", .health = node, .why_not = ""}}, site, QUICK, "", {});
  EXPECT_EQ(report.exclude(), "here");
  EXPECT_EQ(report.drain_command_size(), 0);
}

}  // namespace
}  // namespace ananke
