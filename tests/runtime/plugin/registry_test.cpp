#include "runtime/plugin/registry.h"

#include <gtest/gtest.h>

#include <thread>

#include "ananke/job.pb.h"
#include "ananke/options.pb.h"
#include "ananke/site.pb.h"
#include "google/protobuf/descriptor.h"
#include "runtime/base/hash.h"
#include "tests/refusal.h"
#include "tests/runtime/plugin/echo_role.h"
#include "tests/runtime/plugin/test_plugins.h"

namespace ananke {
namespace {

// Serialized Echo: this test does not link the plugin's message, as no host does.
const std::string twice_ho("\x0a\x02ho\x10\x02", 6);
const std::string fall_silent("\x50\x01", 2);

RoleContext at_rank(int rank) {
  static const Job job;
  static const Site site;
  return {job, site, {}, rank};
}

TEST(PluginRegistry, RefusesAFileThatDiffersFromWhatTheLauncherSaw) {
  PluginRegistry registry;
  EXPECT_ERROR(registry.load("test_echo", test_library("test_echo"), "00ff"), ErrorKind::plugin, "test_echo.so", "00ff",
               hash_file(test_library("test_echo")));
  EXPECT_TRUE(registry.names().empty());
}

TEST(PluginRegistry, RefusesAnotherFingerprintBeforeLoading) {
  const TemporaryFolder folder;
  const auto file =
      folder.write("test_bare.so", patched(read_text(test_library("test_bare")), "protobuf 3", "protobuf 4"));
  PluginRegistry registry;
  EXPECT_ERROR(registry.load("test_bare", file), ErrorKind::plugin, "protobuf 4", "protobuf 3");
}

TEST(PluginRegistry, NamesAMissingFunctionAsThePersonWroteIt) {
  PluginRegistry registry;
  EXPECT_ERROR(registry.load("missing_symbol", broken_library("missing_symbol", "missing_symbol")), ErrorKind::plugin,
               "missing_symbol.so", "ananke::function_that_nobody_has(int)");
}

TEST(PluginRegistry, RefusesAPluginWithoutEntryPointOrOfAnotherName) {
  PluginRegistry registry;
  EXPECT_ERROR(registry.load("no_entry", broken_library("no_entry", "no_entry")), ErrorKind::plugin, "no_entry.so",
               "ananke_plugin_v1", "ANANKE_PLUGIN");
  EXPECT_ERROR(registry.load("adamw", test_library("test_bare")), ErrorKind::plugin, "test_bare.so", "'test_bare'",
               "'adamw'");
}

TEST(PluginRegistry, RefusesADescriptorThatSaysOtherThanTheNote) {
  const TemporaryFolder folder;
  std::string content = read_text(test_library("test_bare"));
  const std::string words = "Takes no config";
  content.replace(content.find(words), words.size(), "Takes no coffee");  // the note stands before the constants
  PluginRegistry registry;
  EXPECT_ERROR(registry.load("test_bare", folder.write("test_bare.so", content)), ErrorKind::plugin, "test_bare.so",
               "Takes no coffee", "Takes no config");
}

TEST(PluginRegistry, RefusesASecondPluginWithNamesThatProtobufHasAlready) {
  PluginRegistry registry;
  registry.load("test_echo", test_library("test_echo"));
  EXPECT_ERROR(registry.load("same_file", broken_library("same_file", "same_file")), ErrorKind::plugin, "same_file.so",
               "tests/runtime/plugin/echo/echo.proto");
  EXPECT_ERROR(registry.load("same_message", broken_library("same_message", "same_message")), ErrorKind::plugin,
               "same_message.so", "ananke.plugin.Echo", "tests/runtime/plugin/echo/echo.proto");
  EXPECT_ERROR(registry.load("test_echo", broken_library("same_name", "test_bare")), ErrorKind::plugin, "same name");
}

TEST(PluginRegistry, BuildsARoleObjectFromItsConfig) {
  PluginRegistry registry;
  registry.load("test_echo", test_library("test_echo"), hash_file(test_library("test_echo")));
  registry.load("test_bare", test_library("test_bare"));
  registry.load("test_bare", test_library("test_bare"));
  EXPECT_EQ(registry.names(), (std::vector<std::string>{"test_echo", "test_bare"}));
  EXPECT_EQ(registry.names("optimizer").size(), 0u);
  const RoleContext context = at_rank(3);
  EXPECT_EQ(registry.create<EchoRole>("test_echo", context, twice_ho)->say(), "3:hoho");
  EXPECT_EQ(registry.create<EchoRole>("test_echo", context, "")->say(), "3:echo");
  EXPECT_EQ(registry.create<EchoRole>("test_bare", context, "")->say(), "bare");
}

TEST(PluginRegistry, BlamesThePluginWhoseConstructorThrows) {
  PluginRegistry registry;
  registry.load("test_echo", test_library("test_echo"));
  registry.load("throws_int", broken_library("throws_int", "throws_int"));
  registry.load("test_bare", test_library("test_bare"));
  const RoleContext context = at_rank(0);
  EXPECT_ERROR(registry.create<EchoRole>("test_echo", context, fall_silent), ErrorKind::resource, "'test_echo'",
               "test_echo.so", "no air left in 0 rooms");
  EXPECT_ERROR(registry.create<EchoRole>("throws_int", context, ""), ErrorKind::plugin, "throws_int.so");
  EXPECT_ERROR(registry.create<EchoRole>("test_bare", context, twice_ho), ErrorKind::config, "takes no config");
  EXPECT_ERROR(registry.create<EchoRole>("test_echo", context, "\xff"), ErrorKind::internal, "ananke.plugin.Echo");
  EXPECT_ERROR(registry.create<SilentRole>("test_echo", context, ""), ErrorKind::config, "observer", "optimizer");
  EXPECT_ERROR(registry.create<EchoRole>("muon", context, ""), ErrorKind::internal, "'muon'");
}

TEST(PluginRegistry, ServesRanksThatAreThreads) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([rank] {
      PluginRegistry registry;
      registry.load("test_echo", test_library("test_echo"));
      const RoleContext context = at_rank(rank);
      EXPECT_EQ(registry.create<EchoRole>("test_echo", context, "")->say(), fmt::format("{}:echo", rank));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

// The rule option of a plugin's own message is the one of libananke.
TEST(PluginRegistry, FindsFieldRulesInAPluginsMessage) {
  PluginRegistry registry;
  registry.load("test_echo", test_library("test_echo"));
  const auto* message = google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName("ananke.plugin.Echo");
  ASSERT_NE(message, nullptr);
  EXPECT_EQ(message->FindFieldByName("times")->options().GetExtension(rule).maximum(), 9);
}

}  // namespace
}  // namespace ananke
