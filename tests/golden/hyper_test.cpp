#include "tests/golden/hyper.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "ananke/plugin.pb.h"
#include "plugins/adamw/adamw.pb.h"
#include "runtime/base/error.h"
#include "runtime/plugin/note.h"
#include "tests/golden/optimizer_case.h"

namespace ananke::golden {
namespace {

namespace fs = std::filesystem;

class GoldenCase : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "ananke_golden_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const fs::path& file, const std::string& text) {
    fs::create_directories((folder_ / file).parent_path());
    std::ofstream(folder_ / file) << text;
  }
  // The config that hyper.json gives, or the error.
  std::string config_of(const std::string& text, plugin::AdamW* config = nullptr) {
    write("hyper.json", text);
    try {
      const PluginNote note = read_note(ANANKE_BINARY_DIR "/lib/ananke/adamw.so");
      const std::string bytes = make_config(read_hyper(folder_), note);
      EXPECT_TRUE(!config || config->ParseFromString(bytes));
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }
  // What ctest lists with ANANKE_GOLDEN_DIR set to the folder.
  std::string listed() {
    const std::string command = "ANANKE_GOLDEN_DIR='" + folder_.string() +
                                "' ctest --test-dir " ANANKE_BINARY_DIR "/tests/golden -N -R '^golden\\.' 2>&1";
    FILE* pipe = popen(command.c_str(), "r");
    std::string text;
    char line[512];
    while (pipe && std::fgets(line, sizeof line, pipe)) text += line;
    if (pipe) pclose(pipe);
    return text;
  }
  fs::path folder_;
};

TEST_F(GoldenCase, OptionsThatAskForOtherMathematicsAreRefusedByName) {
  EXPECT_EQ(config_of(R"({"amsgrad": true})"), "hyper.json: amsgrad must be false; other values are not offered");
  EXPECT_EQ(config_of(R"({"maximize": true})"), "hyper.json: maximize must be false; other values are not offered");
  EXPECT_EQ(config_of(R"({"decoupled_weight_decay": false})"),
            "hyper.json: decoupled_weight_decay must be true; other values are not offered");
  EXPECT_EQ(config_of(R"({"nesterov": true})"),
            "hyper.json: nesterov is unknown to plugin adamw; ananke.plugin.AdamW has no such field");
  EXPECT_NE(config_of(R"({"betas": [0.9]})").find("betas [0.9] are not 2 numbers"), std::string::npos);
  EXPECT_NE(config_of(R"({"lr": "fast"})").find("as ananke.plugin.AdamW"), std::string::npos);
  EXPECT_NE(config_of("{").find("hyper.json"), std::string::npos);
}

TEST_F(GoldenCase, HyperParametersBecomeThePluginsConfig) {
  plugin::AdamW config;
  EXPECT_EQ(config_of(R"({"lr": 0.25, "betas": [0.5, 0.75], "eps": 1e-3, "weight_decay": 0, "amsgrad": false,
                          "maximize": false, "foreach": null, "capturable": true, "fused": null, "optimizer": "adamw"})",
                      &config),
            "");
  EXPECT_EQ(config.lr(), 0.25);
  EXPECT_EQ(config.beta1(), 0.5);
  EXPECT_EQ(config.beta2(), 0.75);
  EXPECT_EQ(config.eps(), 1e-3);
  EXPECT_TRUE(config.has_weight_decay());
  EXPECT_EQ(config.weight_decay(), 0);
}

TEST_F(GoldenCase, ACaseWithoutItsOptimizerIsRefused) {
  write("hyper.json", "{}");
  EXPECT_THROW(optimizer_of(folder_), Error);
  write("hyper.json", R"({"optimizer": "adamw"})");
  EXPECT_EQ(optimizer_of(folder_), "adamw");
}

TEST_F(GoldenCase, CtestListsEveryCaseFolderThatIsThereWhenItStarts) {
  EXPECT_NE(listed().find("golden.none_found"), std::string::npos);
  write("notes/README", "no case");
  EXPECT_NE(listed().find("golden.none_found"), std::string::npos);
  write("model b/config.json", "{}");
  write("steps/hyper.json", "{}");
  const std::string text = listed();
  EXPECT_NE(text.find("golden.model b"), std::string::npos) << text;
  EXPECT_NE(text.find("golden.steps"), std::string::npos) << text;
  EXPECT_EQ(text.find("golden.n"), std::string::npos) << text;
}

}  // namespace
}  // namespace ananke::golden
