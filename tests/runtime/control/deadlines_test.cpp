// Deadlines of the launcher's end, by a clock that the test sets: what is due does not depend on how fast the machine
// is.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <map>

#include "ananke/control.pb.h"
#include "runtime/control/control_server.h"
#include "runtime/control/frame.h"
#include "runtime/control/socket.h"
#include "tests/patience.h"

namespace ananke {
namespace {

using std::chrono::milliseconds;
using Kind = ControlEvent::Kind;

// Workers are sockets that say what they are told to.
class ControlDeadlinesTest : public ::testing::Test {
 protected:
  void start(int size, ControlDeadlines deadlines) {
    options_ = {.size = size, .secret = make_secret(), .host = "127.0.0.1", .deadlines = deadlines};
    server_ = std::make_unique<ControlServer>(options_, now_);
  }
  // Joins, and says more in the same breath.
  void join(int rank, const std::string& more = "") {
    ControlMessage message;
    message.mutable_hello()->set_secret(options_.secret);
    message.mutable_hello()->set_rank(static_cast<unsigned>(rank));
    sockets_[rank] = connect_to("127.0.0.1:" + std::to_string(server_->port()), test_patience);
    send(rank, encode_frame(message) + more);
    EXPECT_TRUE(eventually([&] { return look().worker(rank).joined; })) << rank;
  }
  void beat(int rank, std::uint64_t step) {
    ControlMessage message;
    const std::string activity = std::to_string(++beats_);
    message.mutable_heartbeat()->set_phase("step");
    message.mutable_heartbeat()->set_step(step);
    message.mutable_heartbeat()->set_activity(activity);
    send(rank, encode_frame(message));
    EXPECT_TRUE(eventually([&] { return look().worker(rank).activity == activity; })) << rank;
  }
  static std::string exchange(const std::string& key, bool after_work) {
    ControlMessage message;
    message.mutable_exchange()->set_key(key);
    message.mutable_exchange()->set_after_work(after_work);
    return encode_frame(message);
  }
  void pass(milliseconds time) {
    now_ += time;
    look();
  }
  std::vector<int> ranks_of(Kind kind) const {
    std::vector<int> ranks;
    for (const ControlEvent& event : events_) {
      if (event.kind == kind) ranks.push_back(event.rank);
    }
    return ranks;
  }

 private:
  const ControlServer& look() {
    for (ControlEvent& event : server_->process(now_)) events_.push_back(std::move(event));
    return *server_;
  }
  void send(int rank, const std::string& bytes) {
    ASSERT_EQ(::send(sockets_.at(rank).get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  ControlServerOptions options_;
  ControlServer::Clock::time_point now_ = ControlServer::Clock::now();
  std::unique_ptr<ControlServer> server_;
  std::map<int, Descriptor> sockets_;
  std::vector<ControlEvent> events_;
  int beats_ = 0;
};

using Ranks = std::vector<int>;

TEST_F(ControlDeadlinesTest, WhoHasNotJoinedIsNamedOnce) {
  start(4, {.join = milliseconds(80)});
  join(0);
  join(2);
  pass(milliseconds(80));
  EXPECT_EQ(ranks_of(Kind::not_joined), Ranks{});
  pass(milliseconds(1));
  EXPECT_EQ(ranks_of(Kind::not_joined), (Ranks{1, 3}));
  pass(milliseconds(500));
  EXPECT_EQ(ranks_of(Kind::not_joined), (Ranks{1, 3}));
}

TEST_F(ControlDeadlinesTest, TheSilentAndThoseWithoutProgressAreToldApart) {
  start(3, {.heartbeat = milliseconds(200), .step = milliseconds(600)});
  for (int rank = 0; rank < 3; ++rank) join(rank);
  for (std::uint64_t step = 1; step <= 7; ++step) {
    pass(milliseconds(100));
    beat(0, step);
    beat(1, 1);
    EXPECT_TRUE(step > 2 || ranks_of(Kind::silent).empty());
    EXPECT_TRUE(step > 6 || ranks_of(Kind::no_progress).empty());
  }
  EXPECT_EQ(ranks_of(Kind::silent), Ranks{2}) << "what a stopped process looks like";
  EXPECT_EQ(ranks_of(Kind::no_progress), Ranks{2}) << "it has not even begun the first step";
  pass(milliseconds(100));
  EXPECT_EQ(ranks_of(Kind::no_progress), (Ranks{2, 1}));
  beat(2, 1);
  pass(milliseconds(201));
  EXPECT_EQ(ranks_of(Kind::silent), (Ranks{2, 0, 1, 2})) << "a silence ends, and may come again";
}

// Heartbeats come every second all the same.
TEST_F(ControlDeadlinesTest, AStandstillDoesNotWaitForALongHeartbeatDeadline) {
  start(1, {.heartbeat = std::chrono::hours(1),
            .step = std::chrono::hours(2),
            .stalls = {.factor = 2, .least = milliseconds(2000), .steps = 2}});
  join(0);
  for (std::uint64_t step = 1; step <= 4; ++step) {
    beat(0, step);
    pass(milliseconds(1000));
  }
  for (int second = 0; second < 5; ++second) {
    beat(0, 4);
    pass(milliseconds(1000));
  }
  EXPECT_EQ(ranks_of(Kind::no_progress), Ranks{}) << "a few heartbeats may be late";
  beat(0, 4);
  pass(milliseconds(1001));
  EXPECT_EQ(ranks_of(Kind::no_progress), Ranks{0});
  EXPECT_EQ(ranks_of(Kind::silent), Ranks{});
}

TEST_F(ControlDeadlinesTest, WhoWaitsForOthersIsNotWithoutProgress) {
  start(2, {.exchange = milliseconds(1000), .step = milliseconds(600)});
  join(0, exchange("all", false));
  join(1);
  pass(milliseconds(601));
  EXPECT_EQ(ranks_of(Kind::no_progress), Ranks{1});
  pass(milliseconds(400));  // the exchange is over, and has named whom it missed
  EXPECT_EQ(ranks_of(Kind::no_progress), (Ranks{1, 0}));
}

TEST_F(ControlDeadlinesTest, TheLaunchersOwnAbsenceIsNoWorkersSilence) {
  start(1, {.heartbeat = milliseconds(200), .step = milliseconds(600)});
  join(0);
  pass(milliseconds(60'000));
  EXPECT_EQ(ranks_of(Kind::silent), Ranks{});
  EXPECT_EQ(ranks_of(Kind::no_progress), Ranks{});
  pass(milliseconds(201));
  EXPECT_EQ(ranks_of(Kind::silent), Ranks{0});
}

}  // namespace
}  // namespace ananke
