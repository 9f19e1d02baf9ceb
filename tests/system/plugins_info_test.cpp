// What `ananke plugins` and `ananke plugins info` say of plugins that work, and of files that do not.
#include <gtest/gtest.h>

#include "runtime/base/error.h"
#include "tests/runtime/plugin/test_plugins.h"
#include "tests/system/command_process.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

class PluginsInfo : public ::testing::Test {
 protected:
  int run(const std::vector<std::string>& words) {
    CommandProcess command(words, folder_.path() / "output");
    const int code = command.wait();
    output_ = command.output();
    return code;
  }
  void expect(const std::string& text) const {
    EXPECT_NE(output_.find(text), std::string::npos) << text << " is not in:\n" << output_;
  }
  TemporaryFolder folder_;
  std::string output_;
};

TEST_F(PluginsInfo, SaysAllThatAJobNeedsToKnow) {
  ASSERT_EQ(run({"plugins", "info", "adamw"}), 0) << output_;
  expect("adamw 1.0: AdamW with decoupled weight decay, as torch.optim.AdamW\n");
  expect("role         optimizer, see runtime/roles/optimizer.h\n");
  expect("file         " ANANKE_BINARY_DIR "/lib/ananke/adamw.so\n");
  expect("built with   ananke ");
  expect("in a job     optimizer { match: \".*\" use: \"adamw\" }\n");
  expect("on the line  --set plugins.adamw.lr=");
  expect("config       plugins { config { [ananke/ananke.plugin.AdamW] { lr: ");
  expect("  lr: double, default ");
  expect("  beta1: double, default 0.9, ");
  EXPECT_EQ(output_.find("refused"), std::string::npos) << output_;
}

TEST_F(PluginsInfo, SaysOfEveryFieldOfEveryPluginWhatItMeans) {
  ASSERT_EQ(run({"plugins", "--names"}), 0) << output_;
  std::istringstream names(output_);
  int plugins = 0;
  for (std::string name; std::getline(names, name); ++plugins) {
    ASSERT_EQ(run({"plugins", "info", name}), 0) << output_;
    const std::size_t fields = output_.find("\n\n");
    if (fields == std::string::npos) {
      expect("config       none");
      continue;
    }
    std::istringstream lines(output_.substr(fields));
    std::string headline;  // a field that no comment has followed yet
    for (std::string line; std::getline(lines, line);) {
      const bool field = line.starts_with("  ") && !line.starts_with("    ");
      if (field || line.empty()) {
        EXPECT_EQ(headline, "") << name << " says nothing of this field";
        headline = field ? line : "";
      } else {
        headline.clear();
      }
    }
    EXPECT_EQ(headline, "") << name << " says nothing of this field";
  }
  EXPECT_GE(plugins, 4);
}

TEST_F(PluginsInfo, ExplainsTheValuesOfEnums) {
  ASSERT_EQ(run({"plugins", "info", "fsdp"}), 0) << output_;
  expect("  gather_dense: FP32 | BF16 | FP8_E4M3, default FP32\n      What weights are while they are gathered;");
  ASSERT_EQ(run({"plugins", "info", "muon"}), 0) << output_;
  expect("      How the step's lr follows the shape of the matrix");
  expect("      MATCH_RMS_ADAMW: lr x 0.2 sqrt(max(rows, columns))");
}

TEST_F(PluginsInfo, DescribesAFileThatTakesNoConfig) {
  ASSERT_EQ(run({"plugins", "info", test_library("test_bare").string()}), 0) << output_;
  expect("in a job     plugins { use: \"test_bare\" }\n");
  expect("config       none\n");
}

TEST_F(PluginsInfo, SaysWhatDiffersInAPluginOfAnotherBuild) {
  const auto file =
      folder_.write("test_bare.so", patched(text_of(test_library("test_bare")), "exceptions on", "exceptions no"));
  ASSERT_EQ(run({"plugins", "info", file.string()}), 0) << output_;
  expect("refused      " + file.string() +
         " was built with [exceptions no], this program with [exceptions on]; rebuild");
  setenv("ANANKE_PLUGIN_PATH", folder_.path().c_str(), 1);
  ASSERT_EQ(run({"plugins"}), 0) << output_;
  expect("\nrefused:\n");  // others may stand before it: a build without CUDA says so here too
  expect("\n  " + file.string() + " was built with [exceptions no]");
  unsetenv("ANANKE_PLUGIN_PATH");
}

TEST_F(PluginsInfo, RefusesWhatIsNoPlugin) {
  EXPECT_EQ(run({"plugins", "info", "adamv"}), static_cast<int>(ErrorKind::plugin));
  expect("did you mean 'adamw'");
  EXPECT_EQ(run({"plugins", "info", folder_.write("text.so", "text").string()}), static_cast<int>(ErrorKind::plugin));
  expect("text.so");
  setenv("ANANKE_PLUGIN_PATH", folder_.path().c_str(), 1);  // now it is found by its name, and refused
  EXPECT_EQ(run({"plugins", "info", "text"}), static_cast<int>(ErrorKind::plugin));
  expect("text.so is not an ELF shared library");
  unsetenv("ANANKE_PLUGIN_PATH");
  EXPECT_EQ(run({"plugins", "info"}), static_cast<int>(ErrorKind::usage));
}

}  // namespace
}  // namespace ananke
