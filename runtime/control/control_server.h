// The launcher's end of the control channel: one connection per worker.
//
// Passive and single-threaded: the owner polls descriptor() together with whatever else it waits for, and calls
// process() when it is readable or next_deadline() has come. Nothing here blocks.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/control/stall_watch.h"

namespace ananke {

struct ControlDeadlines {
  std::chrono::milliseconds join{60'000};      // from start until every worker has joined
  std::chrono::milliseconds exchange{60'000};  // from the first arrival at an exchange
  std::chrono::milliseconds heartbeat{6'000};  // longest silence of a worker
  std::chrono::milliseconds step{600'000};     // longest time without another phase or step
  StallLimits stalls{};                        // longest time without another item, once the job's steps are known
};

struct ControlServerOptions {
  int size = 1;
  std::string secret;              // make_secret()
  std::string host = "127.0.0.1";  // to listen on; "0.0.0.0" for workers on other nodes
  ControlDeadlines deadlines;
};

struct WorkerStatus {
  bool joined = false;
  bool connected = false;
  bool finished = false;  // said so itself
  int exit_code = 0;      // once finished
  std::string host;
  int process = 0;
  std::string phase = "start";
  std::uint64_t step = 0;
  std::string activity;     // the plugin calls it is inside of, as of the last heartbeat
  bool waits = false;       // these only wait for others
  std::string item;         // of the schedule, the last it began, as text; empty: none yet
  std::uint64_t place = 0;  // of that item, from 1
  std::string stacks;       // once it has given them
};

struct ControlEvent {
  enum class Kind {
    joined,          // text: host
    stop_requested,  // a worker asks all to stop; text: why
    failure,         // a worker leaves; error and text say why
    console,         // text: a line
    finished,
    disconnected,  // closed its connection without having finished
    silent,        // no heartbeat for deadlines.heartbeat; text says how long. Once per silence
    no_progress,   // same phase and step for deadlines.step, or the same item too for deadlines.stalls. Once
    stacks,        // the rank has given its stacks
    not_joined,    // deadlines.join has passed; one event per missing rank
    refused,       // a connection that is none of ours; rank is -1; text: from where and why
  };
  Kind kind;
  int rank = -1;
  std::string text;
  ErrorKind error = ErrorKind::internal;
};

class ControlServer {
 public:
  using Clock = std::chrono::steady_clock;

  // Listens. Throws Error(resource).
  explicit ControlServer(ControlServerOptions options, Clock::time_point now = Clock::now());
  ~ControlServer();

  int port() const;
  int descriptor() const;
  Clock::time_point next_deadline() const;
  // What has happened since the last call, in order. Deadlines are judged by `now`, which never goes back.
  std::vector<ControlEvent> process(Clock::time_point now = Clock::now());
  // Asks every worker, also those still to join, to stop after a step of their common choice. Again: does nothing.
  void stop(const std::string& reason);
  // Tells every worker that the job has failed; they leave at once.
  void end(ErrorKind kind, const std::string& message);
  // Asks every worker that is connected what its threads are doing; the answers come as WorkerStatus::stacks.
  void ask_for_stacks();
  const WorkerStatus& worker(int rank) const;
  bool all_joined() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ananke
