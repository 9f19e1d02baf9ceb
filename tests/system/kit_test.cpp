// The plugin kit as a newcomer uses it: an installation in a folder of its own, moved; a new plugin of
// every offered role, built, tested and trained with unchanged; the commands of the guide and of the projects
// as they stand; then Lion, written with the kit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "tests/system/command_process.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

std::string in_quotes(const fs::path& path) { return "'" + path.string() + "'"; }

// Installs once for all tests, and moves the tree, so that nothing in it can point at where it was. Folders have blanks
// in their names, as on many a desktop.
class Kit : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string pattern = (fs::temp_directory_path() / "ananke kit test.XXXXXX").string();
    folder = mkdtemp(pattern.data());
    unsetenv("ANANKE_PLUGIN_PATH");
    shell("cmake --install " ANANKE_BINARY_DIR " --prefix " + in_quotes(folder / "first"));
    fs::rename(folder / "first", prefix());
  }
  static void TearDownTestSuite() { fs::remove_all(folder); }

  static fs::path prefix() { return folder / "it is here"; }
  static std::string ananke() { return in_quotes(prefix() / "bin/ananke"); }
  static std::string in(const std::string& name) { return "cd " + in_quotes(folder / name) + " && "; }
  // Both streams of the command; a test failure with them where it ends with another code.
  static std::string shell(const std::string& command, int code = 0) {
    const fs::path output = folder / "output";
    const int status = std::system(("{ " + command + "; } >" + in_quotes(output) + " 2>&1").c_str());
    const std::string text = text_of(output);
    EXPECT_EQ(WEXITSTATUS(status), code) << command << '\n' << text;
    return text;
  }
  static void make(const std::string& name, const std::string& role) {
    shell(ananke() + " plugins new " + name + " --role " + role + " --output " + in_quotes(folder / name));
  }
  // As the guide says. -O0: what is tested is the kit, not the compiler's patience.
  static void build_and_test(const std::string& name) {
    shell(in(name) + "cmake -S . -B build -DCMAKE_PREFIX_PATH=" + in_quotes(prefix()) +
          " -DCMAKE_CXX_FLAGS='-Wall -Wextra -Werror -O0' -DCMAKE_BUILD_TYPE=None && cmake --build build" +
          " && ctest --test-dir build --output-on-failure");
  }
  static inline fs::path folder;
};

double last_loss(const fs::path& steps) {
  std::ifstream file(steps);
  double loss = -1;
  for (std::string line; std::getline(file, line);) {
    const auto at = line.find("\"loss\":");
    if (line.starts_with("{\"step\"") && at != std::string::npos) loss = std::stod(line.substr(at + 7));
  }
  return loss;
}

class KitRole : public Kit, public ::testing::WithParamInterface<const char*> {};

TEST_P(KitRole, IsBuiltTestedAndTrainedWithUnchanged) {
  const std::string name = std::string("my_") + GetParam();
  make(name, GetParam());
  build_and_test(name);
  const std::string resolved = text_of(folder / name / "build/run/job.textproto");
  EXPECT_NE(resolved.find("build/lib/ananke/" + name + ".so"), std::string::npos) << resolved;
  EXPECT_NE(resolved.find("ranks: 2"), std::string::npos) << resolved;
}

class KitRoleOfTheSameMaths : public KitRole {};

// These roles say how and where a step is computed, not what.
TEST_P(KitRoleOfTheSameMaths, TrainsToTheLossOfTheBuiltIn) {
  const std::string name = std::string("my_") + GetParam();
  make(name, GetParam());
  const std::string there = in(name);
  shell(there + "cmake -S . -B build -DCMAKE_PREFIX_PATH=" + in_quotes(prefix()) +
        " && cmake --build build --target plugin_" + name);
  // Steps enough to see a mistake, and few enough that no router near a tie has chosen otherwise for roundings' sake.
  const std::string run = "ANANKE_PLUGIN_PATH=build/lib/ananke " + ananke() + " run --set training.steps=12 ";
  shell(there + "grep -v 'ananke.plugin.My' job.textproto >plain.textproto && ! cmp job.textproto plain.textproto");
  shell(there + run + "plain.textproto --ranks 2 --run-dir plain && " + run + "job.textproto --ranks 2 --run-dir mine");
  const double plain = last_loss(folder / name / "plain/steps.jsonl"),
               mine = last_loss(folder / name / "mine/steps.jsonl");
  EXPECT_GT(plain, 1.0);
  EXPECT_NEAR(mine, plain, 1e-4 * plain);
}

INSTANTIATE_TEST_SUITE_P(Roles, KitRoleOfTheSameMaths,
                         ::testing::Values("observer", "activations", "experts", "parameters", "backend"),
                         [](const auto& one) { return std::string(one.param); });

INSTANTIATE_TEST_SUITE_P(Roles, KitRole,
                         ::testing::Values("optimizer", "observer", "batches", "activations", "experts", "parameters",
                                           "backend"),
                         [](const auto& one) { return std::string(one.param); });

TEST_F(Kit, ACheckIsBuiltTestedAndListed) {
  make("my_check", "check");
  EXPECT_FALSE(fs::exists(folder / "my_check/job.textproto"));
  build_and_test("my_check");
}

// A plugin that trains nothing passes the test of its run, not the one of its loss.
TEST_F(Kit, TestOfAProjectSeesThatNothingIsLearned) {
  make("my_idle", "optimizer");
  shell(in("my_idle") + "sed -i 's/weight\\[i\\] -= /0 * /' my_idle.cpp && grep '0 [*] lr' my_idle.cpp");
  shell(in("my_idle") + "cmake -S . -B build -DCMAKE_PREFIX_PATH=" + in_quotes(prefix()) +
        " && cmake --build build --target plugin_my_idle");
  const std::string output = shell(in("my_idle") + "ctest --test-dir build --output-on-failure -R '[.]learns'", 8);
  EXPECT_NE(output.find("it should fall from above 4 to below 3"), std::string::npos) << output;
}

TEST_F(Kit, InstallationFindsItsOwnPluginsAndSites) {
  const std::string found = shell(ananke() + " plugins");
  EXPECT_NE(found.find((prefix() / "lib/ananke/fsdp.so").string()), std::string::npos) << found;
  EXPECT_EQ(found.find(ANANKE_BINARY_DIR), std::string::npos) << found;
  for (const char* file : {"share/bash-completion/completions/ananke", "share/man/man1/ananke.1"}) {
    EXPECT_GT(text_of(prefix() / file).size(), 1000u) << file;
  }
  shell(ananke() + " check --site local " + in_quotes(prefix() / "share/ananke/site/local/jobs/smoke.textproto"));
}

// Text files and the places where libraries are looked for; where sources were stands in debug information only.
TEST_F(Kit, InstallationHoldsNothingOfWhereItWasBuilt) {
  for (const std::string& place : {std::string(ANANKE_SOURCE_DIR), (folder / "first").string()}) {
    EXPECT_EQ(shell("grep -rIl " + in_quotes(place) + " " + in_quotes(prefix()) + " || true"), "");
  }
  const std::string paths = shell("cd " + in_quotes(prefix()) +
                                  " && for file in bin/ananke bin/ananke-tokenize lib/libananke.so lib/ananke/*.so; do"
                                  " readelf -d $file | grep -E 'R(UN)?PATH' || true; done");
  EXPECT_NE(paths.find("$ORIGIN/.."), std::string::npos) << paths;
  std::istringstream lines(paths);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream folders(line.substr(line.find('[') + 1, line.find(']') - line.find('[') - 1));
    for (std::string place; std::getline(folders, place, ':');) {  // beside the file, or where a library was found
      for (const std::string& own : {std::string(ANANKE_SOURCE_DIR), std::string(ANANKE_BINARY_DIR), folder.string()}) {
        EXPECT_FALSE(place.starts_with(own)) << line;
      }
    }
  }
}

// Commands stand in a text as lines indented by four blanks.
std::string commands_of(const std::string& text, const std::string& between) {
  std::istringstream lines(text);
  std::string commands;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("    ")) commands += (commands.empty() ? "" : between) + line.substr(4, line.find(" #") - 4);
  }
  return commands;
}

TEST_F(Kit, CommandsOfAProjectWorkAsTheyStand) {
  make("my_words", "observer");
  const std::string commands = commands_of(text_of(folder / "my_words/README.md"), " && ");
  EXPECT_NE(commands.find(in_quotes(prefix()) + "/bin/ananke run"), std::string::npos) << commands;
  const std::string output = shell(in("my_words") + commands);
  EXPECT_NE(output.find("my_words 0.1: steps as lines"), std::string::npos) << output;
  EXPECT_NE(text_of(folder / "my_words/run/my_words.csv").find("\n30,"), std::string::npos) << output;
}

TEST_F(Kit, NamesTheGuideThatItInstalled) {
  const std::string output =
      shell(ananke() + " plugins new my_guided --role observer --output " + in_quotes(folder / "my_guided"));
  const std::string guide = (prefix() / "share/ananke/README.md").string();
  EXPECT_NE(output.find("the guide: " + guide + "\n"), std::string::npos) << output;
  EXPECT_GT(text_of(guide).size(), 1000u);
}

TEST_F(Kit, CommandsOfTheGuideWorkAsTheyStand) {
  std::string guide = text_of(prefix() / "share/ananke/README.md");
  guide = guide.substr(guide.find("## Make, build, test, train"));
  guide = guide.substr(0, guide.find("\n## "));
  guide.erase(guide.find("    cmake --install"), guide.find("    DIR/bin") - guide.find("    cmake --install"));
  for (std::size_t at; (at = guide.find("DIR")) != std::string::npos;) guide.replace(at, 3, in_quotes(prefix()));
  const std::string commands = commands_of(guide, " && ");
  EXPECT_NE(commands.find("ctest"), std::string::npos) << commands;
  fs::create_directory(folder / "guide");
  const std::string output = shell(in("guide") + commands);
  EXPECT_NE(output.find("finished at step 30"), std::string::npos) << output;
}

TEST_F(Kit, ProgramSaysWhatIsWrongWithAPluginOfOtherFlags) {
  make("my_debug", "observer");
  const std::string there = in("my_debug");
  shell(there + "cmake -S . -B build -DCMAKE_PREFIX_PATH=" + in_quotes(prefix()) +
        " -DCMAKE_CXX_FLAGS='-O0 -D_GLIBCXX_DEBUG' && cmake --build build --target plugin_my_debug");
  const std::string output =
      shell(there + "ANANKE_PLUGIN_PATH=build/lib/ananke " + ananke() + " check job.textproto", 3);
  EXPECT_NE(output.find("my_debug.so was built with [containers debug], this program with [containers plain]; rebuild"),
            std::string::npos)
      << output;
}

TEST_F(Kit, RefusesWhatItCannotWrite) {
  const std::string command = ananke() + " plugins new ";
  EXPECT_NE(shell(command + "x --role kernels", 2).find("uses no plugins of role kernels"), std::string::npos);
  EXPECT_NE(shell(command + "x --role optimzer", 2).find("did you mean 'optimizer'"), std::string::npos);
  EXPECT_NE(shell(command + "My-Plugin --role optimizer", 2).find("no name for a plugin"), std::string::npos);
  EXPECT_NE(shell(command + "adam_w --role optimizer", 2).find("adamw.so"), std::string::npos);
  EXPECT_NE(shell(command + "x", 2).find("--role ROLE"), std::string::npos);
  EXPECT_NE(shell(command + "x --role observer --output " + in_quotes(prefix()), 2).find("no empty folder"),
            std::string::npos);
}

// Instead of its first lines the new plugin gets the config and the source of tests/system/kit/lion.
TEST_F(Kit, LionTrains) {
  const fs::path sources = ANANKE_SOURCE_DIR "/tests/system/kit/lion";
  std::size_t lines = 0;
  make("lion", "optimizer");
  for (const char* file : {"lion.proto", "lion.cpp"}) {
    fs::copy_file(sources / file, folder / "lion" / file, fs::copy_options::overwrite_existing);
    const std::string text = text_of(sources / file);
    lines += static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  }
  EXPECT_LT(lines, 80u);
  const std::string there = in("lion");
  shell(there + "cmake -S . -B build -DCMAKE_PREFIX_PATH=" + in_quotes(prefix()) +
        " && cmake --build build --target plugin_lion");
  shell(there + "ANANKE_PLUGIN_PATH=build/lib/ananke " + ananke() +
        " run job.textproto --ranks 2 --set training.steps=150 --set plugins.lion.lr=2e-3");
  // From ln(64) = 4.16 towards the language's entropy, ln(4) = 1.39.
  const double loss = last_loss(folder / "lion/run/steps.jsonl");
  EXPECT_GT(loss, 1.3);
  EXPECT_LT(loss, 2.2);

  // The guide's lines for a job that is there.
  const std::string guide = text_of(prefix() / "share/ananke/README.md");
  const std::string section = guide.substr(guide.find("An optimizer of your own in a job"));
  std::istringstream lines_of_guide(section.substr(section.find("become these"), section.find("\n## ")));
  std::string lines_for_job;
  for (std::string line; std::getline(lines_of_guide, line) && !line.starts_with("A field");) {
    if (line.starts_with("    ")) lines_for_job += line + "\n";
  }
  std::ofstream(folder / "lion/lines") << lines_for_job;
  shell(there + "grep -v -E '^(plugins|optimizer|mesh) ' " +
        in_quotes(prefix() / "share/ananke/site/local/jobs/smoke.textproto") +
        " >smoke && cat smoke lines >mixed.textproto");
  const std::string output = shell(there + "ANANKE_PLUGIN_PATH=build/lib/ananke " + ananke() +
                                   " run mixed.textproto --ranks 2 --run-dir mixed --set training.steps=8");
  EXPECT_NE(output.find("finished at step 8"), std::string::npos) << output;
  const std::string resolved = text_of(folder / "lion/mixed/job.textproto");
  EXPECT_NE(resolved.find("match: \"_proj\"\n  use: \"lion\""), std::string::npos) << resolved;
}

}  // namespace
}  // namespace ananke
