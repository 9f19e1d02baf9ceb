#include "runtime/plugin/plugin_call.h"

#include <gtest/gtest.h>

#include <thread>

namespace ananke {
namespace {

class PluginCalls : public ::testing::Test {
 protected:
  std::shared_ptr<CallTrail> trail = std::make_shared<CallTrail>();
  PluginGuard lion{"optimizer", "lion", "/x/lion.so", trail};
  PluginGuard fsdp{"parameters", "fsdp", "/x/fsdp.so", trail};

  // Kind and text of what a call of lion's throws.
  template <class Work>
  std::pair<ErrorKind, std::string> thrown(Work work) {
    try {
      lion.call("update", work);
    } catch (const Error& error) {
      return {error.kind(), error.what()};
    }
    return {ErrorKind::internal, "nothing"};
  }
};

const std::string in_update = "optimizer plugin 'lion' (/x/lion.so), in update: ";

TEST_F(PluginCalls, PutTheirNameInFrontOfWhateverIsThrown) {
  using Thrown = std::pair<ErrorKind, std::string>;
  EXPECT_EQ(thrown([] { fail(ErrorKind::data, "no rows"); }), (Thrown{ErrorKind::data, in_update + "no rows"}));
  EXPECT_EQ(thrown([] { fail(ErrorKind::internal, "a check"); }), (Thrown{ErrorKind::plugin, in_update + "a check"}));
  EXPECT_EQ(thrown([] { throw std::runtime_error("mine"); }), (Thrown{ErrorKind::plugin, in_update + "mine"}));
  EXPECT_EQ(thrown([] { throw std::bad_alloc(); }), (Thrown{ErrorKind::resource, in_update + "out of memory"}));
  EXPECT_EQ(thrown([] { throw 7; }),
            (Thrown{ErrorKind::plugin, in_update + "it threw something that is no std::exception"}));
}

TEST_F(PluginCalls, DoNotTakeTheBlameForALostPeer) {
  for (ErrorKind kind : {ErrorKind::worker_failed, ErrorKind::stalled, ErrorKind::interrupted}) {
    EXPECT_EQ(thrown([&] { fail(kind, "rank 3 is gone"); }).second, "rank 3 is gone");
  }
}

TEST_F(PluginCalls, NameTheInnermostFirstAndWhoCalledIt) {
  const auto inner = [&] { fsdp.call("acquire", [] { fail(ErrorKind::data, "gone"); }); };
  const std::string chain =
      "parameters plugin 'fsdp' (/x/fsdp.so), in acquire, called by optimizer plugin 'lion' (/x/lion.so), in update";
  EXPECT_EQ(thrown(inner).second, chain + ": gone");
  EXPECT_EQ(thrown([&] { lion.call("cost", inner); }).second,
            "parameters plugin 'fsdp' (/x/fsdp.so), in acquire, called by optimizer plugin 'lion' (/x/lion.so), in "
            "cost: gone");
}

TEST_F(PluginCalls, NameThePluginWhenItsAnswerMakesNoSense) {
  EXPECT_EQ(thrown([&] { lion.require(1 + 1 == 3, "cost", "it is {}", 2); }).second,
            "optimizer plugin 'lion' (/x/lion.so), in cost: it is 2");
  lion.require(true, "cost", "never said");
}

TEST_F(PluginCalls, AreOnTheTrailWhileTheyRunOnAnyThread) {
  const std::string in_release = "parameters plugin 'fsdp' (/x/fsdp.so), in release";
  const std::string in_update = "optimizer plugin 'lion' (/x/lion.so), in update";
  EXPECT_EQ(trail->activity().text, "");
  EXPECT_EQ(PluginScope::current_text(), nullptr);
  const int result = lion.call("update", [&] {
    EXPECT_EQ(PluginScope::current_text(), in_update);
    std::thread([&, call = PluginScope::current()] {
      EXPECT_EQ(PluginScope::current(), nullptr);
      run_inside(call, [&] {
        EXPECT_EQ(PluginScope::current(), call);
        EXPECT_EQ(trail->activity().text, in_update + "; " + in_update);
      });
      fsdp.call("release", [&] { EXPECT_EQ(trail->activity().text, in_update + "; " + in_release); });
    }).join();
    fsdp.call("release", [&] { EXPECT_EQ(trail->activity().text, in_release + ", called by " + in_update); });
    EXPECT_EQ(trail->activity().text, in_update);
    return 5;
  });
  EXPECT_EQ(result, 5);
  EXPECT_EQ(trail->activity().text, "");
  EXPECT_EQ(PluginScope::current(), nullptr);
}

TEST_F(PluginCalls, ThatOnlyWaitStandBackBehindOthers) {
  EXPECT_FALSE(trail->activity().waits);
  const PluginWait nothing;  // outside any plugin
  fsdp.call("reduce", [&] {
    {
      const PluginWait wait;
      EXPECT_TRUE(trail->activity().waits);
      EXPECT_EQ(trail->activity().text, "parameters plugin 'fsdp' (/x/fsdp.so), in reduce");
      std::thread([&] {
        lion.call("update", [&] {
          EXPECT_FALSE(trail->activity().waits);
          EXPECT_EQ(trail->activity().text, "optimizer plugin 'lion' (/x/lion.so), in update");
        });
      }).join();
    }
    EXPECT_FALSE(trail->activity().waits);
  });
}

TEST_F(PluginCalls, AreEchoedByThreadsThatHelp) {
  lion.call("update", [&] {
    std::thread([&, text = PluginScope::current_text()] {
      const PluginEcho echo(text);
      EXPECT_STREQ(PluginScope::current_text(), "optimizer plugin 'lion' (/x/lion.so), in update");
      EXPECT_EQ(PluginScope::current(), nullptr);
      { const PluginEcho nobody(nullptr); }
      EXPECT_EQ(PluginScope::current_text(), text);
    }).join();
  });
}

}  // namespace
}  // namespace ananke
