// A worker's end of the control channel. Every method may be called from any thread; only exchange() waits for others.
//
//   connect ──► exchange, exchange, ...           before and between communicators
//          ──► set_phase("step", 17) each step    heartbeats go out from a thread of the client's own
//          ──► stop_requested()                   the ranks agree among themselves on the step to stop after
//          ──► finish(exit code)  or  fail(kind, message)
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/error.h"
#include "runtime/comm/rendezvous.h"
#include "runtime/plugin/plugin_call.h"

namespace ananke {

struct ControlClientOptions {
  std::string address;  // host:port of the launcher
  std::string secret;
  int rank = 0;
  int size = 1;
  std::string host;  // this worker's node, as messages name it
  std::chrono::milliseconds join_deadline{60'000};
  // The launcher enforces it and names the missing; the client only adds some seconds for a launcher that is stuck.
  std::chrono::milliseconds exchange_deadline{60'000};
  std::chrono::milliseconds step_deadline{600'000};  // of exchange_after_work
  // The launcher is lost or says that the job has failed: this worker must end. Called at most once, on the client's
  // thread, never after finish(). Waiting exchanges throw the same error.
  std::function<void(const Error&)> on_end;
  // What this worker is inside of right now, for reports on a stall: goes along with every heartbeat, and a change is
  // no progress. Called on the client's thread. May be empty.
  std::function<CallTrail::Activity()> activity = {};
  // The item of its schedule that it is at: likewise, but another `begun` is progress.
  struct Item {
    std::uint64_t begun = 0;  // since start
    std::uint64_t place = 0;  // in the schedule, from 1; 0: none yet
    std::string text = {};
  };
  std::function<Item()> item = {};
  // The launcher wants to know what this worker's threads are doing: give_stacks() is the answer, in its own time and
  // from any thread. Called on the client's thread; must not block.
  std::function<void()> on_stacks_wanted = {};
  // Called by set_phase(), on its caller's thread.
  std::function<void(std::string_view phase, std::uint64_t step)> on_phase = {};
};

class ControlClient final : public Rendezvous {
 public:
  // Joins the job. Throws Error(stalled) where the launcher cannot be reached or does not answer, Error(usage) with the
  // launcher's reason where it refuses.
  static std::unique_ptr<ControlClient> connect(ControlClientOptions options);
  // Leaves. Without finish() or fail() before, the launcher takes it as a loss.
  ~ControlClient() override;

  int rank() const override;
  int size() const override;
  std::vector<std::string> exchange(const std::string& key, std::span<const int> members, std::string blob) override;
  std::vector<std::string> exchange_after_work(const std::string& key, std::span<const int> members,
                                               std::string blob) override;

  // What this worker is doing, for reports on a failure. A change counts as progress.
  void set_phase(std::string_view phase, std::uint64_t step = 0);
  bool stop_requested() const noexcept;
  std::string stop_reason() const;
  // Asks the launcher to stop all ranks; the answer comes as stop_requested().
  void request_stop(const std::string& reason);
  // A line for the one console. Never waits: lines beyond what the launcher takes are dropped, and their number told.
  void console(std::string_view line) noexcept;
  void give_stacks(std::string text);
  // Why this worker leaves; waits until the message is out, at most a second. worker_failed and stalled mean that the
  // cause is elsewhere (a peer was lost): the launcher then looks for a better one.
  void fail(ErrorKind kind, const std::string& message) noexcept;
  // Work is done; waits likewise. The launcher's end is no failure from here on.
  void finish(int exit_code) noexcept;

 private:
  class Impl;
  explicit ControlClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ananke
