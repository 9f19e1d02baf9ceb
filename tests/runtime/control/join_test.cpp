// Many workers that come at once, some of them half a minute late, some never; by a clock that the test sets.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
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
using std::chrono::seconds;
using Kind = ControlEvent::Kind;

constexpr int ranks = 2000;
bool is_late(int rank) { return rank % 20 == 7; }  // 5 %

// Workers as the network sees them, without threads of their own.
class TwoThousandWorkers : public ::testing::Test {
 protected:
  void SetUp() override {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    constexpr rlim_t needed = 2 * ranks + 200;
    if (limit.rlim_cur < needed) limit.rlim_cur = std::min(needed, limit.rlim_max);
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < needed) {
      GTEST_SKIP() << "fewer open files are allowed (ulimit -n) than " << needed;
    }
    options_ = {.size = ranks, .secret = make_secret(), .host = "127.0.0.1", .deadlines = {}};
    options_.deadlines.heartbeat = seconds(300);  // none of these says anything between
    options_.deadlines.exchange = seconds(300);
    server_ = std::make_unique<ControlServer>(options_, now_);
  }
  void come(int rank) {
    ControlMessage message;
    message.mutable_hello()->set_secret(options_.secret);
    message.mutable_hello()->set_rank(static_cast<unsigned>(rank));
    workers_[rank].socket = connect_to("127.0.0.1:" + std::to_string(server_->port()), test_patience);
    say(rank, message);
    if (rank % 64 == 0) look();  // the kernel keeps no more than so many that nobody has accepted
  }
  void say(int rank, const ControlMessage& message) {
    const std::string frame = encode_frame(message);
    ASSERT_EQ(send(workers_.at(rank).socket.get(), frame.data(), frame.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(frame.size()));
  }
  // What a worker is told next.
  ControlMessage told(int rank) {
    Worker& worker = workers_.at(rank);
    ControlMessage message;
    char bytes[4096];
    eventually([&] {
      look();
      const ssize_t got = recv(worker.socket.get(), bytes, sizeof bytes, MSG_DONTWAIT);
      if (got > 0) worker.reader.add({bytes, static_cast<std::size_t>(got)});
      return worker.reader.next(message);
    });
    return message;
  }
  void look() {
    for (ControlEvent& event : server_->process(now_)) events_.push_back(std::move(event));
  }
  // As long as a launcher listens, it does so at least every second.
  void pass(seconds time) {
    for (; time > seconds(0); time -= seconds(1)) {
      now_ += seconds(1);
      look();
    }
  }
  std::vector<int> ranks_of(Kind kind) const {
    std::vector<int> found;
    for (const ControlEvent& event : events_) {
      if (event.kind == kind) found.push_back(event.rank);
    }
    return found;
  }

  struct Worker {
    Descriptor socket;
    FrameReader reader;
  };
  ControlServerOptions options_;
  ControlServer::Clock::time_point now_ = ControlServer::Clock::now();
  std::unique_ptr<ControlServer> server_;
  std::map<int, Worker> workers_;
  std::vector<ControlEvent> events_;
};

TEST_F(TwoThousandWorkers, JoinAtOnceAndSomeHalfAMinuteLater) {
  for (int rank = 0; rank < ranks; ++rank) {
    if (!is_late(rank)) come(rank);
  }
  EXPECT_TRUE(eventually([&] {
    look();
    return ranks_of(Kind::joined).size() == ranks - ranks / 20;
  }));
  pass(seconds(30));
  EXPECT_FALSE(server_->all_joined());
  for (int rank = 0; rank < ranks; ++rank) {
    if (is_late(rank)) come(rank);
  }
  for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(told(rank).welcome().size(), unsigned{ranks}) << rank;
  EXPECT_TRUE(server_->all_joined());
  for (int rank = 0; rank < ranks; ++rank) {
    ControlMessage message;
    message.mutable_exchange()->set_key("pair");
    for (const int member : {rank & ~1, rank | 1})
      message.mutable_exchange()->add_members(static_cast<unsigned>(member));
    message.mutable_exchange()->set_blob(std::to_string(rank));
    say(rank, message);
  }
  for (int rank = 0; rank < ranks; ++rank) {
    const ControlMessage answer = told(rank);
    ASSERT_EQ(answer.exchange().blobs_size(), 2) << rank << ": " << answer.exchange().error();
    EXPECT_EQ(answer.exchange().blobs(1), std::to_string(rank | 1));
  }
  pass(seconds(60));
  EXPECT_TRUE(ranks_of(Kind::not_joined).empty());
  EXPECT_TRUE(ranks_of(Kind::refused).empty());
}

TEST_F(TwoThousandWorkers, WhoNeverComesIsListedWhenTheTimeIsOver) {
  std::vector<int> missing;
  for (int rank = 0; rank < ranks; ++rank) {
    if (is_late(rank)) missing.push_back(rank);
    if (!is_late(rank)) come(rank);
  }
  EXPECT_TRUE(eventually([&] {
    look();
    return ranks_of(Kind::joined).size() == ranks - missing.size();
  }));
  pass(seconds(60));
  EXPECT_TRUE(ranks_of(Kind::not_joined).empty()) << "deadlines.join is 60 s";
  pass(seconds(1));
  EXPECT_EQ(ranks_of(Kind::not_joined), missing);
}

}  // namespace
}  // namespace ananke
