#include <gtest/gtest.h>

#include "ananke/plugin.pb.h"
#include "plugins/muon/muon.pb.h"
#include "runtime/base/error.h"
#include "runtime/plugin/note.h"
#include "tests/golden/hyper.h"

namespace ananke::golden {
namespace {

plugin::Muon config_of(const std::string& text) {
  plugin::Muon config;
  const PluginNote note = read_note(ANANKE_BINARY_DIR "/lib/ananke/muon.so");
  EXPECT_TRUE(config.ParseFromString(make_config(Json::parse(text, "hyper.json"), note)));
  return config;
}

std::string refusal_of(const std::string& text) {
  try {
    config_of(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(GoldenMuon, OptionsThatAskForOtherMathematicsAreRefusedByName) {
  EXPECT_NE(refusal_of(R"({"adjust_lr_fn": "other"})").find("OTHER"), std::string::npos);
  EXPECT_EQ(refusal_of(R"({"adjust_lr_fn": 1})"), "hyper.json: adjust_lr_fn 1 is no name");
  EXPECT_EQ(refusal_of(R"({"ns_coefficients": [1]})"), "hyper.json: ns_coefficients [1] are not 3 numbers");
  EXPECT_NE(refusal_of(R"({"newton_schulz": "float16"})").find("FLOAT16"), std::string::npos);
}

TEST(GoldenMuon, HyperParametersBecomeThePluginsConfig) {
  const plugin::Muon config = config_of(R"({"lr": 0.25, "momentum": 0.5, "nesterov": false, "eps": 1e-3, "ns_steps": 7,
      "ns_coefficients": [1, -2, 3], "adjust_lr_fn": "match_rms_adamw", "newton_schulz": "bfloat16"})");
  EXPECT_EQ(config.lr(), 0.25);
  EXPECT_EQ(config.momentum(), 0.5);
  EXPECT_FALSE(config.nesterov());
  EXPECT_EQ(config.eps(), 1e-3);
  EXPECT_EQ(config.ns_steps(), 7u);
  EXPECT_EQ(config.ns_a(), 1);
  EXPECT_EQ(config.ns_b(), -2);
  EXPECT_EQ(config.ns_c(), 3);
  EXPECT_EQ(config.adjust_lr_fn(), plugin::Muon::MATCH_RMS_ADAMW);
  EXPECT_EQ(config.newton_schulz(), plugin::Muon::BFLOAT16);
  const plugin::Muon plain = config_of(R"({"adjust_lr_fn": null, "newton_schulz": "float64"})");
  EXPECT_EQ(plain.adjust_lr_fn(), plugin::Muon::ORIGINAL);
  EXPECT_EQ(plain.newton_schulz(), plugin::Muon::FLOAT32);
}

}  // namespace
}  // namespace ananke::golden
