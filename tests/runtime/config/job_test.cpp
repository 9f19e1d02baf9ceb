#include "runtime/config/job.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "runtime/base/hash.h"
#include "runtime/base/random.h"
#include "runtime/config/schema.h"
#include "runtime/plugin/registry.h"
#include "tests/refusal.h"
#include "tests/runtime/config/job_text.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

class JobReader : public testing::Test {
 protected:
  // The valid job with one change must be refused with these words.
  void expect_refused(const std::string& from, const std::string& to, std::initializer_list<std::string> words) {
    expect_error([&] { file_.load(changed(valid_job, from, to)); }, ErrorKind::config, words, to.c_str());
  }
  JobFile file_;
};

TEST_F(JobReader, NamesLineColumnAndNearestNameOfAnUnknownField) {
  expect_refused("hidden_size", "hiden_size",
                 {"job.textproto:5:3: ", "'hiden_size'", "Model", "did you mean 'hidden_size'?"});
  expect_refused("training {", "trainign {", {"job.textproto:13:1: ", "did you mean 'training'?"});
  expect_refused("lr: 0.25", "l_r: 0.25", {"job.textproto:22:7: ", "Tune", "'l_r'", "did you mean 'lr'?"});
  expect_refused("match: \"norm\"", "mach: \"norm\"", {"job.textproto:23:16: ", "Group", "did you mean 'match'?"});
}

TEST_F(JobReader, NamesWhatIsNoSuchValue) {
  expect_refused("steps: 20", "steps: 20 recompute: ful", {"job.textproto:14:", "'ful'", "did you mean 'FULL'?"});
  expect_refused("steps: 20", "steps: 20 recompute: SELECTIVE recompute_operators: [NORM]",
                 {"job.textproto:14:", "'NORM'", "did you mean 'NORMS'?"});
  expect_refused("lr: 0.25", "mode: NESTEROF", {"job.textproto:22:", "did you mean 'NESTEROV'?"});
  expect_refused("steps: 20", "steps: \"many\"", {"job.textproto:14:10: ", "expected integer", "many"});
  expect_refused("steps: 20", "steps: 5000000000", {"job.textproto:14:10: ", "5000000000", "out of range"});
  expect_refused("steps: 20", "steps: -1", {"job.textproto:14:", "-"});
  expect_refused("steps: 20", "steps: 20 steps: 21", {"job.textproto:14:13: ", "second time"});
  expect_refused("name: \"test\"", "name: \"test", {"job.textproto:1:"});
  expect_refused("data {", "data {{", {"job.textproto:"});
}

TEST_F(JobReader, NamesTheNearestPluginAndMessage) {
  expect_refused("ananke.plugin.Tune", "ananke.plugin.Tuna",
                 {"job.textproto:21:13: ", "ananke.plugin.Tuna", "did you mean 'ananke.plugin.Tune'?"});
  expect_refused("use: \"tune\"", "use: \"tuna\"",
                 {"job.textproto:27:", "optimizer[0].use", "'tuna'", "did you mean 'tune'?"});
  expect_refused("use: \"tune\"", "use: \"fsdp\"", {"job.textproto:27:", "'parameters'", "not optimizer", "tune"});
  expect_refused("plugins {", "plugins { use: \"fsdpp\" }\nplugins {",
                 {"job.textproto:19:", "'fsdpp'", "did you mean 'fsdp'?"});
}

// In the form [ananke/NAME] { } the parser looks inside; bytes it takes as they are.
TEST_F(JobReader, RefusesAConfigWhoseBytesAreNoPluginsMessage) {
  const auto refused = [&](const std::string& config, std::initializer_list<std::string> words) {
    expect_refused("optimizer {", "plugins {\n  config { " + config + " }\n}\noptimizer {", words);
  };
  refused(R"(type_url: "ananke/ananke.plugin.Tuna")",
          {"job.textproto:28:3: ", "'ananke.plugin.Tuna'", "did you mean 'ananke.plugin.Tune'?"});
  refused(R"(type_url: "ananke/ananke.Job")", {"job.textproto:28:3: ", "no plugin at hand", "'ananke.Job'"});
  refused(R"(type_url: "a\"b\001" value: "\377")", {"job.textproto:28:3: ", "no plugin at hand"});
  refused(R"(type_url: "ananke/ananke.plugin.Tune" value: "\377\377")",
          {"job.textproto:28:3: ", "2 bytes", "no ananke.plugin.Tune", "[ananke/ananke.plugin.Tune] { }"});
  for (const char* url : {R"(anan\017e)", "", "a.b/c"}) {
    refused(fmt::format(R"(type_url: "{}/ananke.plugin.Tune" value: "")", url),
            {"job.textproto:28:3: ", "type_url", "write [ananke/ananke.plugin.Tune]"});
  }
  refused(R"(type_url: "ananke/ananke.plugin.Tune" value: "\260\0037")",  // a number for field 54
          {"job.textproto:28:3: ", "its 3 bytes hold more than fields of ananke.plugin.Tune"});
  refused(R"(value: "\t\000")", {"job.textproto:28:3: ", "no type_url"});
}

TEST_F(JobReader, RefusesAnOverrideWithAConfigWhoseBytesAreNoPluginsMessage) {
  for (const char* text : {R"(plugins+={config {type_url: "ananke/ananke.plugin.Tune" value: "\377"}})",
                           R"(plugins[0].config={type_url: "ananke/ananke.plugin.Tune" value: "\377"})"}) {
    EXPECT_ERROR(file_.load(valid_job, {text}), ErrorKind::config, "--set plugins", "1 bytes", "ananke.plugin.Tune");
  }
}

TEST_F(JobReader, ReadsAConfigGivenAsBytes) {
  const std::string expanded =
      "    [ananke/ananke.plugin.Tune] {\n      lr: 0.25\n      groups { match: \"norm\" size: 3 }\n    }\n";
  const std::string bytes = R"(type_url: "ananke/ananke.plugin.Tune" value: "\t\000\000\000\000\000\000\320?")";
  EXPECT_NE(print_job(file_.load(changed(valid_job, expanded, bytes))).find("lr: 0.25"), std::string::npos);
}

TEST_F(JobReader, NamesTheJobWhereItsPluginsAreNotUsable) {
  const fs::path twin = file_.folder().path() / "tune.so";
  fs::copy_file(config_library() / "tune.so", twin);
  const std::string two = "plugins { library: \"" + twin.string() + "\" }\nplugins { library: \"" +
                          (config_library() / "tune.so").string() + "\" }\noptimizer {";
  EXPECT_ERROR(file_.load(changed(valid_job, "optimizer {", two)), ErrorKind::plugin, "job.textproto: ", "tune");
  const std::string text = std::string(valid_job) + R"(resolved { plugins { name: "gone" path: "/nowhere.so" } })";
  EXPECT_ERROR(load_resolved_job(file_.folder().write("job.textproto", text)), ErrorKind::plugin,
               "job.textproto: resolved plugin 'gone'", "/nowhere.so");
}

TEST_F(JobReader, ChecksTheRulesOfFieldsWithTheirPlaces) {
  expect_refused("vocab_size: 64", "vocab_size: 1", {"job.textproto:4:3: ", "model.vocab_size is 1", "at least 2"});
  expect_refused("lr: 0.25", "lr: 0", {"job.textproto:22:7: ", "plugins.tune.lr is 0", "above 0 and below 1"});
  expect_refused("lr: 0.25", "lr: nan", {"plugins.tune.lr is nan"});
  expect_refused("lr: 0.25", "shift: nan", {"plugins.tune.shift is nan", "finite"});
  expect_refused("lr: 0.25", "shift: -inf", {"plugins.tune.shift is -inf", "finite"});
  expect_refused("lr: 0.25", "scales: [1, inf]", {"plugins.tune.scales[1] is inf", "finite"});
  expect_refused("lr: 0.25", "scales: [1, -2]", {"job.textproto:22:7: ", "plugins.tune.scales[1] is -2", "at least 0"});
  expect_refused("lr: 0.25", "bucket: \"64 parsecs\"",
                 {"job.textproto:22:7: ", "plugins.tune.bucket", "64 parsecs", "MiB"});
  expect_refused("lr: 0.25", "pause: \"soon\"", {"plugins.tune.pause", "soon"});
  expect_refused("match: \"norm\"", "", {"job.textproto:23:7: ", "plugins.tune.groups[0].match is missing"});
  expect_refused("size: 3 }", "size: 0 }", {"job.textproto:23:30: ", "plugins.tune.groups[0].size is 0"});
  expect_refused("run_dir: \"run\"", "", {"job.textproto: run_dir is missing"});
  expect_refused("run_dir: \"run\"", "run_dir: \"\"", {"job.textproto:2:1: run_dir is missing"});
  expect_refused("optimizer { use: \"tune\" }", "", {"optimizer needs at least one entry"});
  expect_refused("  vocab_size: 64\n", "", {"job.textproto:3:1: model.vocab_size is missing"});
}

TEST_F(JobReader, ListsAllProblemsAtOnce) {
  const std::string text = changed(changed(valid_job, "vocab_size: 64", "vocab_size: 0"), "steps: 20", "steps: 0");
  EXPECT_ERROR(file_.load(text), ErrorKind::config, "2 problems", "model.vocab_size is 0", "training.steps is 0");
}

TEST_F(JobReader, RefusesContradictoryEntriesOfPlugins) {
  expect_refused("plugins {\n", "plugins {\n  use: \"fsdp\"\n", {"plugins[0].config", "'tune'", "'fsdp'", "agree"});
  expect_refused("plugins {\n", "plugins { }\nplugins {\n", {"job.textproto:19:1: plugins[0]", "names no plugin"});
  expect_refused("plugins {\n", "plugins { use: \"tune\" }\nplugins {\n", {"plugins[1]", "second time"});
  expect_refused("plugins {\n", "plugins { use: \"strange\" }\nplugins {\n", {"'wizard'", "optimizer"});
  expect_refused("plugins {\n", "plugins { use: \"fsdp\" }\nplugins { use: \"other_parameters\" }\nplugins {\n",
                 {"plugins[1]", "'fsdp'", "'other_parameters'", "remove the other"});
}

TEST_F(JobReader, RefusesAJobFileThatIsNone) {
  const auto load = [&](const fs::path& path) {
    return load_job({.file = path, .plugin_folders = {config_library()}});
  };
  EXPECT_ERROR(load("/nonexistent/job.textproto"), ErrorKind::config, "/nonexistent/job.textproto does not exist");
  EXPECT_ERROR(load(file_.folder().path()), ErrorKind::config, "is a folder");
  EXPECT_ERROR(load(file_.folder().write("job.so", std::string("\x7f"
                                                               "ELF\0\1\2",
                                                               7))),
               ErrorKind::config, "job.so:1:1");
  EXPECT_ERROR(load(file_.folder().write("empty.textproto", "")), ErrorKind::config, "model is missing");
  EXPECT_ERROR(load("/dev/zero"), ErrorKind::config, "more than");
}

TEST_F(JobReader, NamesMissingFiles) {
  expect_refused("data { generated { } }", "data { tokens: \"/nonexistent/train.h5\" }",
                 {"job.textproto:18:8: ", "/nonexistent/train.h5", "does not exist", "ananke data import"});
  expect_refused(
      "data { generated { } }", "data { generated { } }\nevaluation { held_out { name: \"a\" tokens: \"/tmp\" } }",
      {"job.textproto:19:35: evaluation.held_out[0].tokens is /tmp, which is no file", "ananke data import"});
  EXPECT_ERROR(file_.load(changed(valid_job, "plugins {\n", "plugins {\n  library: \"/nonexistent/a.so\"\n")),
               ErrorKind::plugin, "job.textproto:20:3: plugins[0].library: /nonexistent/a.so does not exist");
  EXPECT_ERROR(file_.load(valid_job, {"plugins.tune.library=/dev/null"}), ErrorKind::plugin,
               "--set plugins.tune.library=/dev/null: /dev/null is not a file");
}

TEST_F(JobReader, SaysWhatToWriteInsteadOfAFieldThatIsGone) {
  const std::string way = "write held_out { name: \"NAME\" tokens: \"FILE.h5\" }";
  expect_refused("data { generated { } }", "data { generated { } }\nevaluation { tokens: \"x.h5\" }",
                 {"job.textproto:19:14: ", "no field 'tokens' any more", way});
  EXPECT_ERROR(file_.load(valid_job, {"evaluation.tokens=x.h5"}), ErrorKind::config,
               "--set evaluation.tokens=x.h5: ", way);
}

TEST_F(JobReader, SaysWhyAPluginThatWasFoundIsRefused) {
  const fs::path folder = file_.folder().path() / "broken";
  file_.folder().write("broken/muon.so", "");
  EXPECT_ERROR(
      load_job({.file = file_.folder().write("job.textproto", changed(valid_job, "use: \"tune\"", "use: \"muon\"")),
                .plugin_folders = {config_library(), folder}}),
      ErrorKind::config, "optimizer[0].use", "muon.so is empty (0 bytes)");
  fs::copy_file(config_library() / "tune.so", folder / "tune.so");
  EXPECT_ERROR(load_job({.file = file_.folder().write("job.textproto", valid_job),
                         .plugin_folders = {config_library(), folder}}),
               ErrorKind::config, "was found but refused", "two plugins with the same name 'tune'");
}

TEST_F(JobReader, FillsInWhatWasLeftOut) {
  const LoadedJob loaded = file_.load(valid_job, {}, 4);
  const Job& job = loaded.job;
  EXPECT_EQ(job.model().head_dim(), 8u);
  EXPECT_TRUE(job.model().has_rope_theta());
  EXPECT_EQ(job.model().max_position_embeddings(), 16u);
  EXPECT_EQ(job.mesh().replicate(), 1u);
  EXPECT_EQ(job.mesh().shard(), 4u);
  EXPECT_EQ(job.training().rows_per_microbatch(), 2u);
  EXPECT_EQ(job.optimizer(0).match(), ".*");
  EXPECT_TRUE(job.has_learning_rate() && job.has_checkpoint() && job.has_evaluation());
  EXPECT_EQ(job.run_dir(), (fs::current_path() / "run").string());
  EXPECT_EQ(job.resolved().ranks(), 4u);
  ASSERT_EQ(job.plugins_size(), 3);
  EXPECT_EQ(job.plugins(1).use(), "backend_host");
  EXPECT_EQ(job.plugins(2).use(), "fsdp");
  EXPECT_EQ(job.resolved().plugins(0).hash(), hash_file(config_library() / "tune.so"));
  const auto config = loaded.schema->unpack(job.plugins(0).config());
  EXPECT_NE(config->ShortDebugString().find("period: 10"), std::string::npos);
  EXPECT_EQ(config_of(job, "tune"), job.plugins(0).config().value());
  EXPECT_EQ(config_of(job, "fsdp"), "");
  EXPECT_EQ(config_of(job, "muon"), "");
}

TEST_F(JobReader, AddsAPluginThatOnlyARuleNamesWithItsDefaults) {
  std::string text = valid_job;
  text.erase(text.find("plugins {"), text.find("optimizer {") - text.find("plugins {"));
  const LoadedJob loaded = file_.load(text);
  EXPECT_EQ(loaded.job.plugins(0).use(), "tune");
  EXPECT_NE(loaded.schema->unpack(loaded.job.plugins(0).config())->ShortDebugString().find("lr: 0.001"),
            std::string::npos);
}

TEST_F(JobReader, TakesRanksFromTheMeshWhereNoneAreGiven) {
  EXPECT_EQ(file_.load(valid_job).job.resolved().ranks(), 1u);
  EXPECT_EQ(file_.load(std::string(valid_job) + "mesh { replicate: 2 }").job.mesh().shard(), 1u);
  EXPECT_EQ(file_.load(std::string(valid_job) + "mesh { replicate: 2 shard: 2 }").job.resolved().ranks(), 4u);
  EXPECT_ERROR(file_.load(std::string(valid_job) + "mesh { replicate: 4294967295 shard: 4294967295 }"),
               ErrorKind::config, "mesh.shard", "18446744065119617025 ranks");
  EXPECT_ERROR(file_.load(std::string(valid_job) + "mesh { expert_shard: 65536 expert: 65536 replicate: 4294967295 }"),
               ErrorKind::config, "mesh.shard is 4294967296", "18446744069414584320 ranks");
}

TEST_F(JobReader, FillsInTheExpertAxes) {
  const Job job = file_.load(std::string(valid_job) + "mesh { shard: 4 }").job;
  EXPECT_EQ(job.mesh().expert(), 1u);
  EXPECT_EQ(job.mesh().expert_shard(), 4u);
  EXPECT_ERROR(file_.load(std::string(valid_job) + "mesh { expert: 2 }"), ErrorKind::config, "mesh.expert is 2",
               "a plugin of role experts that exchanges tokens", "use: \"ep\"");
  EXPECT_ERROR(file_.load(std::string(valid_job) + "mesh { expert: 0 }"), ErrorKind::config, "mesh.expert is 0");
  EXPECT_ERROR(file_.load(std::string(valid_job) + "mesh { expert: 65537 }"), ErrorKind::config,
               "mesh.expert is 65537");
}

TEST_F(JobReader, PutsALibraryBeforeWhatIsFound) {
  const fs::path copy = file_.folder().path() / "mine.so";
  fs::copy_file(config_library() / "tune.so", copy);
  const std::string text = changed(valid_job, "plugins {\n", "plugins {\n  library: \"" + copy.string() + "\"\n");
  EXPECT_EQ(file_.load(text).job.resolved().plugins(0).path(), copy.string());
  const Job by_name = file_.load(valid_job, {"plugins.tune.library=" + copy.string()}).job;
  EXPECT_EQ(by_name.resolved().plugins(0).path(), copy.string());
  const Job by_place = file_.load(text, {"plugins[0].library=" + (config_library() / "tune.so").string()}).job;
  EXPECT_EQ(by_place.resolved().plugins(0).path(), (config_library() / "tune.so").string());
  const fs::path again = file_.folder().path() / "again.so";
  fs::copy_file(copy, again);
  EXPECT_ERROR(file_.load(text + "plugins { library: \"" + again.string() + "\" }"), ErrorKind::plugin, "mine.so",
               "again.so", "same name 'tune'");
}

TEST_F(JobReader, ReadsBackExactlyWhatItPrints) {
  const LoadedJob loaded = file_.load(valid_job, {"plugins.tune.lr=0.1", "name=a \"b\" \\ \xc3\xa9"}, 2);
  const std::string text = print_job(loaded);
  const LoadedJob again = load_resolved_job(file_.folder().write("resolved.textproto", text));
  EXPECT_EQ(print_job(again), text);
  EXPECT_EQ(again.job.SerializeAsString(), loaded.job.SerializeAsString());
  // Also as a job to run anew: the same but for where it came from.
  LoadedJob rerun = file_.load(text);
  rerun.job.mutable_resolved()->set_source(loaded.job.resolved().source());
  EXPECT_EQ(print_job(rerun), text);
  EXPECT_ERROR(load_resolved_job(file_.folder().write("plain.textproto", "name: \"x\"")), ErrorKind::config,
               "no resolved job");
}

// Whatever a file or a --set holds, the answer is a job or an Error.
TEST_F(JobReader, SurvivesAnyText) {
  std::string deep = "x";
  for (int i = 0; i < 100000; ++i) deep += "{x";
  EXPECT_ERROR(file_.load(deep), ErrorKind::config, "job.textproto:1:");
  const std::string long_name(1'000'000, 'x');
  EXPECT_ERROR(file_.load(long_name + ": 1"), ErrorKind::config, "job.textproto:1:1: message Job has no field 'xxx",
               "bytes more)");
  EXPECT_ERROR(file_.load(valid_job, {long_name + "=1"}), ErrorKind::config, "--set xxx", "bytes more)");
  const RandomKey random(11, "text");
  const std::string letters = "{}[]<>:;,\"'\\#./_-+09aezAnull\n\t \0\xff";
  std::uint64_t draw = 0;
  for (int round = 0; round < 50; ++round) {
    std::string text = valid_job;
    std::string change = "model.mlp_only_layers[0]=[1,2]";
    for (int hit = 0; hit < 3; ++hit) {
      const char letter = letters[random.below(draw++, letters.size())];
      text[random.below(draw++, text.size())] = letter;
      change[random.below(draw++, change.size())] = letter;
    }
    for (const auto& [job, overrides] : {std::pair(text, std::vector<std::string>()), {valid_job, {change}}}) {
      try {
        file_.load(job, overrides);
      } catch (const Error& error) {
        EXPECT_TRUE(error.kind() == ErrorKind::config || error.kind() == ErrorKind::plugin) << error.what();
      }
    }
  }
}

// A worker reads the job after plugins were loaded into the process.
TEST_F(JobReader, ReadsAConfigWhosePluginIsLoaded) {
  PluginRegistry registry;
  EXPECT_ERROR(registry.load("tune", config_library() / "backend_host.so"), ErrorKind::plugin, "backend_host");
  registry.load("tune", config_library() / "tune.so");
  const LoadedJob loaded = file_.load(valid_job);
  EXPECT_EQ(print_job(load_resolved_job(file_.folder().write("r.textproto", print_job(loaded)))), print_job(loaded));
  expect_refused("lr: 0.25", "lr: 0", {"plugins.tune.lr is 0"});
}

TEST_F(JobReader, HoldsTheExampleJobs) {
  const fs::path built = fs::path(ANANKE_BINARY_DIR) / "lib/ananke";
  const std::map<std::string, std::vector<std::string>> plugins = {
      {"smoke", {}}, {"demo", {}}, {"demo_muon", {"muon"}}, {"demo_wires", {"muon", "fsdp", "ep"}}};
  for (const auto& [name, more] : plugins) {
    JobOptions options;
    options.file = fs::path(ANANKE_SOURCE_DIR) / "site/local/jobs" / (name + ".textproto");
    options.overrides = {"data={generated {}}", "evaluation.held_out=[]",
                         "plugins.adamw.library=" + (built / "adamw.so").string()};
    for (const std::string& plugin : more) {
      options.overrides.push_back(fmt::format("plugins.{}.library={}", plugin, (built / (plugin + ".so")).string()));
    }
    options.plugin_folders = {config_library()};
    const LoadedJob loaded = load_job(options);
    EXPECT_EQ(loaded.job.resolved().ranks(), 4u);
    EXPECT_EQ(loaded.job.name(), name);
  }
}

}  // namespace
}  // namespace ananke
