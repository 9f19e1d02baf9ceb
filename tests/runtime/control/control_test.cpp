#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <future>

#include "ananke/control.pb.h"
#include "runtime/control/frame.h"
#include "tests/runtime/control/server_thread.h"

namespace ananke {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Kind = ControlEvent::Kind;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return fmt::format("{}: {}", name_of(error.kind()), error.what());
  }
  return "nothing thrown";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// What a connection that sends these bytes is answered; empty where it is hung up on without a word.
std::string answer_to(int port, const std::string& bytes) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  FrameReader reader;
  ControlMessage message;
  char buffer[4096];
  for (ssize_t got; (got = recv(socket.get(), buffer, sizeof buffer, 0)) > 0;) {
    reader.add({buffer, static_cast<std::size_t>(got)});
  }
  return reader.next(message) ? message.failure().message() : "";
}

TEST(ControlServer, RefusesStrangers) {
  ServerThread server(2);
  auto options = server.client_options(0);
  options.secret = make_secret();
  EXPECT_TRUE(contains(error_of([&] { ControlClient::connect(options); }), "usage: the launcher refuses this worker"));
  options.secret.clear();
  EXPECT_TRUE(contains(error_of([&] { ControlClient::connect(options); }), "another secret"));
  options = server.client_options(2);
  EXPECT_TRUE(contains(error_of([&] { ControlClient::connect(options); }), "rank 2 of 2 workers"));
  auto zero = ControlClient::connect(server.client_options(0));
  EXPECT_TRUE(contains(error_of([&] { ControlClient::connect(server.client_options(0)); }), "has joined as"));
  options = server.client_options(1);
  options.size = 3;
  EXPECT_TRUE(contains(error_of([&] { ControlClient::connect(options); }), "runs 2 workers, this worker was told 3"));
}

TEST(ControlServer, SurvivesBytesThatAreNoMessages) {
  ServerThread server(1);
  const int port = server.with_server([](ControlServer& s) { return s.port(); });
  EXPECT_TRUE(contains(answer_to(port, "GET / HTTP/1.1\r\n\r\n"), "more than the limit"));
  EXPECT_TRUE(contains(answer_to(port, std::string("\0\0\0\4\xff\xff\xff\xff", 8)), "no control message"));
  ControlMessage message;
  message.mutable_heartbeat()->set_step(1);
  EXPECT_TRUE(contains(answer_to(port, encode_frame(message)), "no Hello"));
  auto zero = ControlClient::connect(server.client_options(0));
  EXPECT_EQ(zero->exchange("alone", {}, "x"), std::vector<std::string>{"x"});
}

TEST(ControlClient, SaysThatNobodyListens) {
  const Descriptor own(::socket(AF_INET, SOCK_STREAM, 0));  // its port is nobody else's
  sockaddr_in bound{};
  bound.sin_family = AF_INET;
  bound.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(own.get(), reinterpret_cast<sockaddr*>(&bound), sizeof bound), 0);
  const std::string address = "127.0.0.1:" + std::to_string(port_of(own));
  ControlClientOptions options{.address = address,
                               .secret = "s",
                               .rank = 0,
                               .size = 1,
                               .host = "test",
                               .join_deadline = milliseconds(100),
                               .exchange_deadline = seconds(1),
                               .on_end = {}};
  EXPECT_TRUE(
      contains(error_of([&] { ControlClient::connect(options); }), "stalled: cannot reach the launcher at " + address));
  for (const char* bad : {"", "host", ":12", "host:"}) {
    options.address = bad;
    EXPECT_TRUE(contains(error_of([&] { ControlClient::connect(options); }), "config: '")) << bad;
  }
}

TEST(ControlClient, SaysThatTheLauncherDoesNotAnswer) {
  ServerThread server(1);
  server.pause(true);
  auto options = server.client_options(0);
  options.join_deadline = milliseconds(100);
  EXPECT_TRUE(contains(error_of([&] { ControlClient::connect(options); }), "did not answer within 100 ms"));
}

TEST(ControlChannel, NamesTheMissingOfAnExchange) {
  ServerThread server(4, {.exchange = milliseconds(80)});
  auto zero = ControlClient::connect(server.client_options(0));
  auto two = ControlClient::connect(server.client_options(2));
  EXPECT_TRUE(contains(error_of([&] { zero->exchange("mesh", {}, "x"); }),
                       "stalled: exchange 'mesh' of ranks 0-3: "
                       "ranks 1-3 did not come within 80 ms"));
  const std::vector<int> pair{0, 2};
  EXPECT_TRUE(contains(error_of([&] { two->exchange("pair", pair, "x"); }), "rank 0 did not come"));
}

// Files take one rank longer than another, by more than messages may.
TEST(ControlChannel, AfterWorkTheDeadlineIsAStepsAndNotThatOfMessages) {
  ServerThread server(2, {.exchange = milliseconds(80), .step = seconds(90)});
  auto zero = ControlClient::connect(server.client_options(0));
  auto one = ControlClient::connect(server.client_options(1));
  auto waiting = std::async([&] { return zero->exchange_after_work("files", {}, "a"); });
  std::this_thread::sleep_for(milliseconds(250));  // at least
  EXPECT_EQ(one->exchange_after_work("files", {}, "b"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(waiting.get(), (std::vector<std::string>{"a", "b"}));

  ServerThread hasty(2, {.step = milliseconds(80)});
  auto alone = ControlClient::connect(hasty.client_options(0));
  EXPECT_TRUE(contains(error_of([&] { alone->exchange_after_work("more files", {}, "a"); }),
                       "rank 1 did not come within 80 ms; look into the log of the missing, or raise the site's "
                       "deadlines.step"));
}

TEST(ControlChannel, SixtyFourJoinAtOnceAndExchange) {
  constexpr int ranks = 64;
  ServerThread server(ranks);
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto client = ControlClient::connect(server.client_options(rank));
      auto all = client->exchange("all", {}, std::to_string(rank));
      auto pair = client->exchange("pair", std::vector<int>{rank & ~1, rank | 1}, std::string(100'000, 'a'));
      bool good = all.size() == ranks && pair.size() == 2 && pair[1].size() == 100'000;
      for (int i = 0; good && i < ranks; ++i) good = all[static_cast<std::size_t>(i)] == std::to_string(i);
      right += good ? 1 : 0;
      client->finish(0);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, ranks);
  EXPECT_TRUE(eventually([&] { return server.events(Kind::finished).size() == ranks; }));
  EXPECT_TRUE(server.events(Kind::disconnected).empty());
}

TEST(ControlChannel, StopReachesAllAlsoThoseWhoJoinLater) {
  ServerThread server(3);
  auto zero = ControlClient::connect(server.client_options(0));
  auto one = ControlClient::connect(server.client_options(1));
  EXPECT_FALSE(zero->stop_requested());
  one->request_stop("SIGTERM on node 7");
  EXPECT_EQ(server.wait_for(Kind::stop_requested).text, "SIGTERM on node 7");
  server.with_server([](ControlServer& s) { s.stop("SIGTERM on node 7"); });
  auto two = ControlClient::connect(server.client_options(2));
  for (auto* client : {zero.get(), one.get(), two.get()}) {
    EXPECT_TRUE(eventually([&] { return client->stop_requested(); }));
    EXPECT_EQ(client->stop_reason(), "SIGTERM on node 7");
  }
}

TEST(ControlChannel, ReportsPhaseStepFailureAndConsole) {
  ServerThread server(1);
  auto zero = ControlClient::connect(server.client_options(0));
  zero->set_phase("evaluation", 7);
  EXPECT_TRUE(eventually([&] {
    return server.with_server(
        [](ControlServer& s) { return s.worker(0).phase == "evaluation" && s.worker(0).step == 7; });
  }));
  zero->console("loss 2.43");
  EXPECT_EQ(server.wait_for(Kind::console).text, "loss 2.43");
  zero->set_phase("step", 8);
  zero->fail(ErrorKind::numeric, "loss is nan");
  zero.reset();
  const auto failure = server.wait_for(Kind::failure);
  EXPECT_EQ(failure.text, "loss is nan");
  EXPECT_EQ(failure.error, ErrorKind::numeric);
  EXPECT_EQ(server.wait_for(Kind::disconnected).rank, 0);
  EXPECT_EQ(server.with_server([](ControlServer& s) { return s.worker(0).step; }), 8u);
}

TEST(ControlChannel, AWorkerGivesSignsOfLifeByItself) {
  ServerThread server(1, {.heartbeat = milliseconds(200)});
  auto options = server.client_options(0);
  options.activity = [signs = 0]() mutable { return CallTrail::Activity{std::to_string(++signs), false}; };
  auto zero = ControlClient::connect(options);
  EXPECT_TRUE(eventually([&] {
    return server.with_server([](ControlServer& s) {
      const std::string& signs = s.worker(0).activity;
      return !signs.empty() && std::stoi(signs) >= 3;
    });
  }));
}

// Steps are short, then no item begins any more, long before deadlines.step.
TEST(ControlChannel, AStandstillIsToldByTheMedianOfStepsWithItemsAndStacks) {
  ServerThread server(2, {.heartbeat = milliseconds(600),
                          .step = seconds(600),
                          .stalls = {.factor = 3, .least = milliseconds(300), .steps = 3}});
  std::atomic<std::uint64_t> begun{0};
  std::vector<std::unique_ptr<ControlClient>> clients;
  for (int rank : {0, 1}) {
    auto options = server.client_options(rank);
    options.item = [&begun, rank] {
      const std::uint64_t items = begun;
      if (rank == 0) return ControlClientOptions::Item{items * 10, 7, "item 7 of 9, layer.1 backward, microbatch 0"};
      return ControlClientOptions::Item{items, 3, "item 3 of 9, layer.2 forward, microbatch 0"};
    };
    options.on_stacks_wanted = [&clients, rank] {
      clients[static_cast<std::size_t>(rank)]->give_stacks(fmt::format("thread {}", rank));
    };
    clients.push_back(ControlClient::connect(options));
  }
  for (std::uint64_t step = 1; step <= 5; ++step) {
    begun = step;
    for (auto& client : clients) client->set_phase("step", step);
    EXPECT_TRUE(eventually([&] {
      return server.with_server([&](ControlServer& s) { return s.worker(0).step == step && s.worker(1).step == step; });
    }));
  }
  const ControlEvent event = server.wait_for(Kind::no_progress);
  EXPECT_TRUE(contains(event.text, "(a step usually takes ")) << event.text;
  EXPECT_EQ(server.with_server([](ControlServer& s) { return s.worker(1).item; }),
            "item 3 of 9, layer.2 forward, microbatch 0");
  EXPECT_EQ(server.with_server([](ControlServer& s) { return s.worker(0).place; }), 7u);
  server.with_server([](ControlServer& s) { s.ask_for_stacks(); });
  EXPECT_TRUE(eventually([&] { return server.events(Kind::stacks).size() == 2; }));
  EXPECT_EQ(server.with_server([](ControlServer& s) { return s.worker(1).stacks; }), "thread 1");
}

TEST(ControlChannel, LosingTheLauncherOrTheJobEndsTheWorkerOnce) {
  auto server = std::make_unique<ServerThread>(2);
  std::vector<std::promise<std::string>> ends(2);
  std::vector<std::unique_ptr<ControlClient>> clients;
  for (int rank : {0, 1}) {
    auto options = server->client_options(rank);
    options.on_end = [&ends, rank](const Error& error) {
      ends[static_cast<std::size_t>(rank)].set_value(error.what());
    };
    clients.push_back(ControlClient::connect(options));
  }
  auto waiting = std::async([&] { return error_of([&] { clients[0]->exchange("never", {}, ""); }); });
  EXPECT_TRUE(eventually([&] { return server->with_server([](ControlServer& s) { return s.all_joined(); }); }));
  server->with_server([](ControlServer& s) { s.end(ErrorKind::worker_failed, "rank 1 was killed"); });
  EXPECT_EQ(waiting.get(), "worker_failed: rank 1 was killed");
  for (auto& end : ends) EXPECT_EQ(end.get_future().get(), "rank 1 was killed");
  EXPECT_TRUE(contains(error_of([&] { clients[1]->exchange("later", {}, ""); }), "rank 1 was killed"));
  clients.clear();

  server = std::make_unique<ServerThread>(1);
  std::promise<std::string> end;
  auto options = server->client_options(0);
  options.on_end = [&](const Error& error) { end.set_value(error.what()); };
  auto alone = ControlClient::connect(options);
  server.reset();
  EXPECT_TRUE(contains(end.get_future().get(), "is gone"));
}

TEST(ControlChannel, ConsoleNeverWaitsForASlowLauncher) {
  ServerThread server(1);
  auto zero = ControlClient::connect(server.client_options(0));
  server.pause(true);
  const std::string line(1000, 'x');
  for (int i = 0; i < 20'000; ++i) zero->console(line);
  server.pause(false);
  EXPECT_TRUE(eventually([&] {
    const auto lines = server.events(Kind::console);  // there may be room again for those behind
    return std::ranges::any_of(lines, [](const auto& line) { return contains(line.text, "lines dropped]"); });
  }));
}

}  // namespace
}  // namespace ananke
