// A ControlServer with a thread that polls it, for tests.
#pragma once

#include <poll.h>

#include <mutex>
#include <thread>

#include "runtime/control/control_client.h"
#include "runtime/control/control_server.h"
#include "runtime/control/socket.h"
#include "tests/patience.h"

namespace ananke {

class ServerThread {
 public:
  explicit ServerThread(int size, ControlDeadlines deadlines = {})
      : options_{.size = size, .secret = make_secret(), .host = "127.0.0.1", .deadlines = deadlines},
        server_(options_),
        thread_([this] { run(); }) {}
  ~ServerThread() {
    set(quit_, true);
    thread_.join();
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(server_.port()); }
  const std::string& secret() const { return options_.secret; }
  ControlClientOptions client_options(int rank) const {
    return {.address = address(),
            .secret = secret(),
            .rank = rank,
            .size = options_.size,
            .host = "test",
            .join_deadline = test_patience,
            .exchange_deadline = options_.deadlines.exchange,
            .step_deadline = options_.deadlines.step,
            .on_end = {}};
  }
  template <class Call>
  auto with_server(Call call) {
    std::lock_guard lock(mutex_);
    return call(server_);
  }
  void pause(bool on) { set(paused_, on); }  // holds from here on
  std::vector<ControlEvent> events(ControlEvent::Kind kind) {
    std::lock_guard lock(mutex_);
    std::vector<ControlEvent> some;
    for (const ControlEvent& event : events_) {
      if (event.kind == kind) some.push_back(event);
    }
    return some;
  }
  // The first event of this kind; rank -2 when none came.
  ControlEvent wait_for(ControlEvent::Kind kind) {
    if (!eventually([&] { return !events(kind).empty(); })) return {kind, -2, "did not come"};
    return events(kind)[0];
  }

 private:
  void set(bool& flag, bool value) {
    std::lock_guard lock(mutex_);
    flag = value;
  }
  void run() {
    for (;;) {
      pollfd ready{server_.descriptor(), POLLIN, 0};
      poll(&ready, 1, 5);
      std::unique_lock lock(mutex_);
      if (quit_) return;
      if (!paused_) {
        for (ControlEvent& event : server_.process()) events_.push_back(std::move(event));
        continue;
      }
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // what waits to be read would have it spin
    }
  }

  ControlServerOptions options_;
  ControlServer server_;
  std::mutex mutex_;
  std::vector<ControlEvent> events_;
  bool quit_ = false, paused_ = false;
  std::thread thread_;
};

}  // namespace ananke
