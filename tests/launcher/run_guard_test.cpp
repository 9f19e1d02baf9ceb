#include "launcher/run_guard.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <optional>

#include "runtime/base/error.h"

namespace ananke {
namespace {

class RunGuardTest : public ::testing::Test {
 protected:
  RunGuardTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ananke-guard-test.XXXXXX").string();
    folder = mkdtemp(pattern.data());
  }
  ~RunGuardTest() override { std::filesystem::remove_all(folder); }
  std::string refusal() const {
    try {
      RunGuard second(folder);
    } catch (const Error& error) {
      return fmt::format("{}: {}", name_of(error.kind()), error.what());
    }
    return "";
  }
  std::filesystem::path folder;
};

TEST_F(RunGuardTest, RefusesASecondLauncherAndNamesTheFirst) {
  std::optional<RunGuard> first(folder);
  for (int i = 0; i < 2; ++i) {
    EXPECT_NE(refusal().find(fmt::format("config: the run folder {} is in use by a launcher: process {} on ",
                                         folder.string(), getpid())),
              std::string::npos)
        << refusal();
  }
  first.reset();
  EXPECT_EQ(refusal(), "");
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST_F(RunGuardTest, TakesOverFromALauncherThatWasKilled) {
  const pid_t child = fork();
  if (child == 0) {
    new RunGuard(folder);  // never removed: as after kill -9
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(std::filesystem::is_empty(folder));
  EXPECT_EQ(refusal(), "");
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST_F(RunGuardTest, DoesNotJudgeAnotherMachineOrAnUnfinishedFile) {
  std::ofstream(folder / "launcher.lock") << "elsewhere 1 2\nboot of elsewhere pid:[1]\n";
  EXPECT_NE(refusal().find("process 1 on elsewhere"), std::string::npos);
  EXPECT_NE(refusal().find("remove " + (folder / "launcher.lock").string()), std::string::npos);
  std::ofstream(folder / "launcher.lock") << "";
  EXPECT_NE(refusal(), "");
  EXPECT_TRUE(std::filesystem::exists(folder / "launcher.lock"));
}

TEST_F(RunGuardTest, SaysThatTheFolderCannotBeWritten) {
  folder /= "missing";
  EXPECT_NE(refusal().find("resource: cannot write"), std::string::npos) << refusal();
  folder = folder.parent_path();
}

}  // namespace
}  // namespace ananke
