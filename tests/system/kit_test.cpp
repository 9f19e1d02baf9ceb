// The plugin kit as a newcomer uses it: an installation in a folder of its own, moved; a new plugin of every offered
// role, built, tested and trained with unchanged; then Lion, written with the kit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "tests/system/command_process.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

// Installs once for all tests, and moves the tree, so that nothing in it can point at where it was.
class Kit : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string pattern = (fs::temp_directory_path() / "ananke-kit-test.XXXXXX").string();
    folder = mkdtemp(pattern.data());
    unsetenv("ANANKE_PLUGIN_PATH");
    shell("cmake --install " ANANKE_BINARY_DIR " --prefix " + (folder / "first").string());
    fs::rename(folder / "first", prefix());
  }
  static void TearDownTestSuite() { fs::remove_all(folder); }

  static fs::path prefix() { return folder / "installed"; }
  static fs::path ananke() { return prefix() / "bin/ananke"; }
  // Both streams of the command; a test failure with them where it ends with another code.
  static std::string shell(const std::string& command, int code = 0) {
    const fs::path output = folder / "output";
    const int status = std::system(("{ " + command + "; } >" + output.string() + " 2>&1").c_str());
    const std::string text = text_of(output);
    EXPECT_EQ(WEXITSTATUS(status), code) << command << '\n' << text;
    return text;
  }
  static void make(const std::string& name, const std::string& role) {
    shell(ananke().string() + " plugins new " + name + " --role " + role + " --output " + (folder / name).string());
  }
  // As the guide says. -O0: what is tested is the kit, not the compiler's patience.
  static void build_and_test(const std::string& name) {
    shell("cd " + (folder / name).string() + " && cmake -S . -B build -DCMAKE_PREFIX_PATH=" + prefix().string() +
          " -DCMAKE_CXX_FLAGS='-Wall -Wextra -Werror -O0' -DCMAKE_BUILD_TYPE=None && cmake --build build" +
          " && ctest --test-dir build --output-on-failure");
  }
  static inline fs::path folder;
};

class KitRole : public Kit, public ::testing::WithParamInterface<const char*> {};

TEST_P(KitRole, IsBuiltTestedAndTrainedWithUnchanged) {
  const std::string name = std::string("my_") + GetParam();
  make(name, GetParam());
  build_and_test(name);
  const std::string resolved = text_of(folder / name / "build/run/job.textproto");
  EXPECT_NE(resolved.find("build/lib/ananke/" + name + ".so"), std::string::npos) << resolved;
}

INSTANTIATE_TEST_SUITE_P(Roles, KitRole,
                         ::testing::Values("optimizer", "observer", "batches", "activations", "experts", "parameters",
                                           "backend"),
                         [](const auto& one) { return std::string(one.param); });

TEST_F(Kit, InstallationFindsItsOwnPluginsAndSites) {
  const std::string found = shell(ananke().string() + " plugins");
  EXPECT_NE(found.find((prefix() / "lib/ananke/fsdp.so").string()), std::string::npos) << found;
  EXPECT_EQ(found.find(ANANKE_BINARY_DIR), std::string::npos) << found;
  for (const char* file : {"share/bash-completion/completions/ananke", "share/man/man1/ananke.1"}) {
    EXPECT_GT(text_of(prefix() / file).size(), 1000u) << file;
  }
  shell(ananke().string() + " check --site local " +
        (prefix() / "share/ananke/site/local/jobs/smoke.textproto").string());
}

TEST_F(Kit, RefusesWhatItCannotWrite) {
  const std::string command = ananke().string() + " plugins new ";
  EXPECT_NE(shell(command + "x --role kernels", 2).find("uses no plugins of role kernels"), std::string::npos);
  EXPECT_NE(shell(command + "x --role optimzer", 2).find("did you mean 'optimizer'"), std::string::npos);
  EXPECT_NE(shell(command + "My-Plugin --role optimizer", 2).find("no name for a plugin"), std::string::npos);
  EXPECT_NE(shell(command + "adam_w --role optimizer", 2).find("adamw.so"), std::string::npos);
  EXPECT_NE(shell(command + "x", 2).find("--role ROLE"), std::string::npos);
  EXPECT_NE(shell(command + "x --role observer --output " + prefix().string(), 2).find("no empty folder"),
            std::string::npos);
}

double last_loss(const fs::path& steps) {
  std::ifstream file(steps);
  double loss = -1;
  for (std::string line; std::getline(file, line);) {
    const auto at = line.find("\"loss\":");
    if (line.starts_with("{\"step\"") && at != std::string::npos) loss = std::stod(line.substr(at + 7));
  }
  return loss;
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
  const std::string there = "cd " + (folder / "lion").string() + " && ";
  shell(there + "cmake -S . -B build -DCMAKE_PREFIX_PATH=" + prefix().string() +
        " && cmake --build build --target plugin_lion");
  shell(there + "ANANKE_PLUGIN_PATH=build/lib/ananke " + ananke().string() +
        " run job.textproto --ranks 2 --set training.steps=150 --set plugins.lion.lr=2e-3");
  // From ln(64) = 4.16 towards the language's entropy, ln(4) = 1.39.
  const double loss = last_loss(folder / "lion/run/steps.jsonl");
  EXPECT_GT(loss, 1.3);
  EXPECT_LT(loss, 2.2);
}

}  // namespace
}  // namespace ananke
