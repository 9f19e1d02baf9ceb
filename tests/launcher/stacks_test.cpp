#include "launcher/stacks.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <future>
#include <iterator>

#include "launcher/symbols.h"
#include "runtime/control/socket.h"
#include "tests/patience.h"

// By name in what is printed: outside of any namespace, and not to be inlined.
[[gnu::noinline]] void wait_for_a_letter(int descriptor, std::promise<int>& id) {
  id.set_value(gettid());
  pollfd ready{descriptor, POLLIN, 0};
  while (poll(&ready, 1, -1) != 1) {
  }
  asm volatile("");  // no tail call: the frame stays
}

namespace ananke {
namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A thread that waits in a function of this file, until the object ends.
class Waiting {
 public:
  explicit Waiting(bool blocks_signals = false)
      : thread_([this, blocks_signals] {
          sigset_t all;
          sigfillset(&all);
          if (blocks_signals) pthread_sigmask(SIG_SETMASK, &all, nullptr);
          wait_for_a_letter(wake_.get(), id_);
        }),
        id(id_.get_future().get()) {
    EXPECT_TRUE(eventually([this] { return sleeps(); }));
  }
  ~Waiting() {
    const std::uint64_t one = 1;
    EXPECT_EQ(write(wake_.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
    thread_.join();
  }

 private:
  // As the kernel says, behind the name of the program, which may have spaces.
  bool sleeps() const {
    std::ifstream stat(fmt::format("/proc/self/task/{}/stat", id));
    const std::string text(std::istreambuf_iterator<char>(stat), {});
    return text.substr(text.rfind(')') + 1).starts_with(" S");
  }

  Descriptor wake_{eventfd(0, EFD_CLOEXEC)};
  std::promise<int> id_;
  std::thread thread_;

 public:
  const int id;
};

TEST(Stacks, ShowWhereAThreadWaitsByName) {
  const Waiting waiting;
  const std::string text = take_stacks();
  EXPECT_TRUE(contains(text, fmt::format("thread {}", waiting.id))) << text;
  EXPECT_TRUE(contains(text, "wait_for_a_letter(int")) << text;
  EXPECT_TRUE(contains(text, "#0 ")) << text;
  EXPECT_FALSE(contains(text, fmt::format("thread {} ", gettid()))) << "the thread that asks";
}

TEST(Stacks, ThreadsThatBlockSignalsAreListedWithTheirState) {
  const Waiting waiting(true);
  const std::string text = take_stacks();
  const auto at = text.find(fmt::format("{} '", waiting.id));
  ASSERT_NE(at, std::string::npos) << text;
  EXPECT_TRUE(contains(text.substr(at), "blocks signals; S (sleeping)")) << text;
}

TEST(Stacks, ThreadsOfOneStackStandTogetherAndTheTextIsBounded) {
  const Waiting a, b, c;
  const std::string text = take_stacks();
  EXPECT_TRUE(contains(text, "threads " + std::to_string(std::min({a.id, b.id, c.id})))) << text;
  const std::string little = take_stacks(200);
  EXPECT_LE(little.size(), 220u) << little;
  EXPECT_TRUE(little.ends_with("  ...\n")) << little;
}

TEST(Stacks, AreTakenAgainAndAgainWhileThreadsComeAndGo) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the sanitizer cannot take a signal on a thread that is about to end";
#endif
  std::atomic<bool> quit{false};
  std::thread coming([&] {
    while (!quit) std::thread([] {}).join();
  });
  const Waiting waiting;
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(contains(take_stacks(), std::to_string(waiting.id)));
  quit = true;
  coming.join();
}

TEST(StackReporter, DeliversOnceForEachRequestAndNothingOnceStopped) {
  std::promise<std::string> delivered;
  const Waiting waiting;
  StackReporter reporter([&](std::string text) { delivered.set_value(std::move(text)); });
  reporter.request();
  EXPECT_TRUE(contains(delivered.get_future().get(), std::to_string(waiting.id)));
  reporter.stop();
  reporter.request();  // a second value would throw
}

TEST(Symbols, NameFunctionsFilesAndNothing) {
  Symbols symbols;
  EXPECT_TRUE(contains(symbols.name(reinterpret_cast<std::uintptr_t>(&wait_for_a_letter)), "wait_for_a_letter(int"));
  EXPECT_EQ(symbols.name(16), "0x10");
}

}  // namespace
}  // namespace ananke
