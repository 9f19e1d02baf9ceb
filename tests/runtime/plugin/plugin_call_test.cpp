#include "runtime/plugin/plugin_call.h"

#include <gtest/gtest.h>

#include <thread>


namespace ananke {
namespace {

class PluginCalls : public ::testing::Test {
 protected:
  std::shared_ptr<CallTrail> trail = std::make_shared<CallTrail>();
  PluginGuard lion{"lion", "/x/lion.so", trail};
  PluginGuard fsdp{"fsdp", "/x/fsdp.so", trail};

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

const std::string in_update = "plugin 'lion' (/x/lion.so), in update: ";

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

TEST_F(PluginCalls, LeaveTheBlameWithTheInnermost) {
  const auto inner = [&] { fsdp.call("acquire", [] { fail(ErrorKind::data, "gone"); }); };
  EXPECT_EQ(thrown(inner).second, "plugin 'fsdp' (/x/fsdp.so), in acquire: gone");
}

TEST_F(PluginCalls, NameThePluginWhenItsAnswerMakesNoSense) {
  EXPECT_EQ(thrown([&] { lion.require(1 + 1 == 3, "cost", "it is {}", 2); }).second,
            "plugin 'lion' (/x/lion.so), in cost: it is 2");
  lion.require(true, "cost", "never said");
}

TEST_F(PluginCalls, AreOnTheTrailWhileTheyRunOnAnyThread) {
  EXPECT_EQ(trail->text(), "");
  EXPECT_EQ(PluginScope::current_text(), nullptr);
  const int result = lion.call("update", [&] {
    EXPECT_STREQ(PluginScope::current_text(), "plugin 'lion' (/x/lion.so), in update");
    const PluginCallPtr call = PluginScope::current();
    std::thread([&] {
      EXPECT_EQ(PluginScope::current(), nullptr);
      run_inside(call, [&] { EXPECT_EQ(PluginScope::current(), call); });
    }).join();
    fsdp.call("release", [&] {
      EXPECT_EQ(trail->text(), "plugin 'lion' (/x/lion.so), in update; plugin 'fsdp' (/x/fsdp.so), in release");
    });
    EXPECT_EQ(trail->text(), "plugin 'lion' (/x/lion.so), in update");
    return 5;
  });
  EXPECT_EQ(result, 5);
  EXPECT_EQ(trail->text(), "");
  EXPECT_EQ(PluginScope::current(), nullptr);
}

}  // namespace
}  // namespace ananke
