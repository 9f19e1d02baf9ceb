#include "runtime/plugin/catalog.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "ananke/plugin.pb.h"
#include "tests/refusal.h"
#include "tests/runtime/plugin/test_plugins.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

const fs::path good = test_library("test_echo").parent_path();

TEST(PluginCatalog, SkipsFoldersThatDoNotExist) {
  const PluginCatalog catalog({"/nonexistent/plugins"});
  EXPECT_TRUE(catalog.found().empty());
  EXPECT_TRUE(catalog.refused().empty());
  EXPECT_EQ(catalog.find_by_name("adamw"), nullptr);
}

TEST(PluginCatalog, KeepsTheReasonOfEveryRefusal) {
  const TemporaryFolder folder;
  folder.write("empty.so", "");
  folder.write("text.so", "hello");
  folder.write("readme.txt", "not looked at");
  folder.write("other.so", patched(read_text(test_library("test_bare")), "gcc 1", "gcc 9"));
  const PluginCatalog catalog({folder.path(), good});
  ASSERT_EQ(catalog.refused().size(), 3u);
  EXPECT_NE(catalog.refused()[0].reason.find("empty (0 bytes)"), std::string::npos);
  EXPECT_NE(catalog.refused()[1].reason.find("gcc 9"), std::string::npos);
  EXPECT_EQ(catalog.refused()[1].name, "test_bare");
  EXPECT_NE(catalog.refused()[2].reason.find("ELF magic"), std::string::npos);
  ASSERT_EQ(catalog.found().size(), 2u);
  EXPECT_EQ(catalog.found()[0].note->name(), "test_bare");
  EXPECT_EQ(catalog.find_by_message("ananke.plugin.Echo")->file, fs::canonical(test_library("test_echo")));
  EXPECT_EQ(catalog.find_by_message(""), nullptr);
}

TEST(PluginCatalog, RefusesBothOfTwoThatClashNamingBothFiles) {
  for (const char* twin : {"same_message", "same_file", "same_name"}) {
    const PluginCatalog catalog({good, broken_library(twin, "x").parent_path()});
    ASSERT_EQ(catalog.refused().size(), 2u) << twin;
    for (const RefusedPlugin& refused : catalog.refused()) {
      EXPECT_NE(refused.reason.find("/tests/library/"), std::string::npos) << refused.reason;
      EXPECT_NE(refused.reason.find(std::string("/") + twin + "/"), std::string::npos) << refused.reason;
    }
    EXPECT_EQ(catalog.found().size(), 1u);
  }
}

TEST(PluginCatalog, TakesAFileOnceThoughTwoFoldersLeadToIt) {
  const TemporaryFolder folder;
  fs::create_directory_symlink(good, folder.path() / "again");
  fs::create_directory(folder.path() / "links");
  fs::create_symlink(test_library("test_echo"), folder.path() / "links" / "echo.so");
  const PluginCatalog catalog({good, good, folder.path() / "again", folder.path() / "links"});
  EXPECT_EQ(catalog.found().size(), 2u);
  EXPECT_TRUE(catalog.refused().empty());
}

TEST(PluginCatalog, SaysWhatABuildLeftOutUnlessAnotherHasTheName) {
  const TemporaryFolder folder;
  folder.write("backend_far.missing", "ananke.plugin.BackendFar\nthere was no toolkit; install one\n");
  folder.write("test_echo.missing", "ananke.plugin.Echo\nleft out\n");
  folder.write("empty.missing", "");
  const PluginCatalog catalog({folder.path(), good});
  ASSERT_EQ(catalog.refused().size(), 2u);
  EXPECT_EQ(catalog.refused()[0].name, "backend_far");
  EXPECT_EQ(catalog.refused()[0].message, "ananke.plugin.BackendFar");
  EXPECT_EQ(catalog.refused()[0].reason, "plugin 'backend_far' was not built: there was no toolkit; install one");
  EXPECT_EQ(catalog.refused()[1].name, "empty");
  EXPECT_NE(catalog.find_by_name("test_echo"), nullptr);
}

TEST(PluginCatalog, SearchesTheVariableThenTheFolderBesideTheRuntime) {
  setenv("ANANKE_PLUGIN_PATH", "/one::/two/three", 1);
  const std::vector<fs::path> folders = plugin_search_path();
  unsetenv("ANANKE_PLUGIN_PATH");
  ASSERT_EQ(folders.size(), 3u);
  EXPECT_EQ(folders[0], "/one");
  EXPECT_EQ(folders[1], "/two/three");
  EXPECT_EQ(folders[2], fs::canonical(fs::path(ANANKE_BINARY_DIR) / "lib") / "ananke");
}

}  // namespace
}  // namespace ananke
