// `ananke parity` as a user runs it; what it computes is tests/golden's.
#include <gtest/gtest.h>

#include <filesystem>

#include "runtime/base/error.h"
#include "tests/system/command_process.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

class Parity : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"config.json", "model.safetensors", "case.safetensors"}) {
      fs::copy(fs::path(ANANKE_SOURCE_DIR "/tests/golden/qwen3_moe_dense_mix") / name, folder_.path() / name);
    }
    setenv("ANANKE_PLUGIN_PATH", ANANKE_BINARY_DIR "/tests/rounding_plugins", 1);
  }
  void TearDown() override { unsetenv("ANANKE_PLUGIN_PATH"); }
  int run(const std::vector<std::string>& more) {
    std::vector<std::string> words = {"parity", folder_.path().string()};
    words.insert(words.end(), more.begin(), more.end());
    CommandProcess command(words, folder_.path() / "output");
    const int code = command.wait();
    output_ = command.output();
    return code;
  }
  int run_bf16() { return run({"--backend", "rounding_backend", "--compute", "bf16"}); }
  void expect(const std::string& text) const {
    EXPECT_NE(output_.find(text), std::string::npos) << text << " is not in:\n" << output_;
  }
  TemporaryFolder folder_;
  std::string output_;
};

TEST_F(Parity, SaysWhatOfAMeasuredErrorIsNoNumber) {
  folder_.write("bf16.json", R"({"logits": 0.04, "loss": "small", "gradients": 0.03})");
  EXPECT_EQ(run_bf16(), static_cast<int>(ErrorKind::data)) << output_;
  expect("bf16.json: loss is \"small\", and must be a number");
  folder_.write("bf16.json", R"({"logits": -0.04, "loss": 0.01, "gradients": 0.03})");
  EXPECT_EQ(run_bf16(), static_cast<int>(ErrorKind::data)) << output_;
  expect("bf16.json: logits is -0.04");
  folder_.write("bf16.json", R"({"logits": 0.04, "loss": 0.01})");
  EXPECT_EQ(run_bf16(), static_cast<int>(ErrorKind::data)) << output_;
  expect("bf16.json: gradients is not there");
}

TEST_F(Parity, AllowsTwiceTheMeasuredError) {
  folder_.write("bf16.json", R"({"logits": 0.04, "loss": 0.0001, "gradients": 0.03})");
  EXPECT_EQ(run_bf16(), 0) << output_;
  expect(" 8.0e-02  logits");
  expect(" 3.0e-03  loss");  // at least that
  expect(" 6.0e-02  grad.");
  folder_.write("bf16.json", R"({"logits": 0.001, "loss": 0.01, "gradients": 0.03})");
  EXPECT_EQ(run_bf16(), static_cast<int>(ErrorKind::numeric)) << output_;
  expect(" 2.0e-03  logits  TOO FAR");
}

TEST_F(Parity, TakesTheToleranceOfTheLine) {
  folder_.write("bf16.json", R"({"logits": 0.001, "loss": 0.01, "gradients": 0.03})");
  EXPECT_EQ(run({"--backend", "rounding_backend", "--compute", "bf16", "--logits-tolerance", "0.5"}), 0) << output_;
  EXPECT_EQ(run({"--compute", "bf8"}), static_cast<int>(ErrorKind::usage));
  expect("--compute bf8");
}

}  // namespace
}  // namespace ananke
