// A worker that misbehaves as told: probe_worker ACTION [RANK]. Ranks other than RANK wait for it (an exchange).
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "launcher/stacks.h"
#include "runtime/base/error.h"
#include "runtime/bootstrap/identity.h"
#include "runtime/control/control_client.h"

namespace {

using namespace ananke;
using std::chrono::milliseconds;

void sleep_ms(int time) { std::this_thread::sleep_for(milliseconds(time)); }

std::atomic<int> signs_of_life = 0;  // of this worker, each put together with its phase

[[noreturn]] void sleep_forever() {
  for (;;) pause();
}

// To be found in stacks by its name.
[[gnu::noinline]] void stand_still_here() { sleep_forever(); }

// Some quick steps of all, then the chosen rank stands still in its ninth; the others wait for it.
int stand_still(const Identity& me, int chosen, ControlClientOptions options) {
  std::atomic<ControlClient*> launcher{nullptr};
  StackReporter stacks([&](std::string text) {
    if (ControlClient* const to = launcher) to->give_stacks(std::move(text));
  });
  options.on_stacks_wanted = [&] { stacks.request(); };
  options.item = [] { return ControlClientOptions::Item{1, 4, "item 4 of 9, layer.1 forward, microbatch 0"}; };
  const auto control = ControlClient::connect(std::move(options));
  launcher = control.get();
  const StackReporter::Stop before_control(stacks);
  for (std::uint64_t step = 1;; ++step) {
    control->set_phase("step", step);
    control->exchange("step/" + std::to_string(step), {}, "");
    sleep_ms(60);  // the phase is out
    if (step == 9 && me.rank == chosen) stand_still_here();
  }
}

ControlClientOptions options_of(const Identity& me, bool deaf) {
  ControlClientOptions options;
  options.address = std::getenv("ANANKE_CONTROL");
  options.secret = std::getenv("ANANKE_SECRET");
  options.rank = me.rank;
  options.size = me.size;
  options.host = me.host;
  options.on_end = [deaf](const Error& error) {
    if (deaf) return;
    std::printf("ended: %s\n", error.what());
    std::fflush(stdout);
    _exit(static_cast<int>(error.kind()));
  };
  options.activity = [] {
    ++signs_of_life;
    return CallTrail::Activity{};
  };
  return options;
}

int train_until_stopped(ControlClient& control) {
  std::puts("training");
  std::fflush(stdout);
  for (std::uint64_t step = 1;; ++step) {
    control.set_phase("step", step);
    const auto votes = control.exchange("stop/" + std::to_string(step), {}, control.stop_requested() ? "1" : "0");
    for (const std::string& vote : votes) {
      if (vote != "1") continue;
      std::printf("stopped after step %lu\n", static_cast<unsigned long>(step));
      control.finish(static_cast<int>(ErrorKind::interrupted));
      return static_cast<int>(ErrorKind::interrupted);
    }
    sleep_ms(5);
  }
}

// Until the launcher knows it: messages keep their order, and an exchange is answered.
void tell_phase(ControlClient& control, const char* phase, std::uint64_t step) {
  control.set_phase(phase, step);
  for (const int before = signs_of_life; signs_of_life == before;) sleep_ms(1);
  const int self[] = {control.rank()};
  control.exchange("phase told", self, "");
}

// What a rank does to itself. Returns where the rank is to go on like the others.
void act(const std::string& action, ControlClient& control) {
  if (action == "victims") raise(SIGKILL);
  tell_phase(control, "acting", 17);
  std::printf("about to %s\n", action.c_str());
  std::fflush(stdout);
  if (action == "exit5") _exit(5);
  if (action == "exit0") _exit(0);
  if (action == "abort") std::abort();
  if (action == "kill") raise(SIGKILL);
  if (action == "segv") {
    std::signal(SIGSEGV, SIG_DFL);  // a sanitizer would make an exit code of it
    raise(SIGSEGV);
  }
  if (action == "stop") raise(SIGSTOP);
  if (action == "hang" || action == "deaf") sleep_forever();
  if (action == "late") sleep_ms(700);
  if (action == "numeric") {
    control.fail(ErrorKind::numeric, "loss is nan in step 17");
    _exit(static_cast<int>(ErrorKind::numeric));
  }
  if (action == "talk") {
    const std::string line(999, 'x');
    for (int i = 0; i < 8'000; ++i) {
      std::puts(line.c_str());
      control.console(line);
    }
  }
}

void work(const std::string& action, int chosen, ControlClient& control) {
  const int rank = control.rank();
  control.exchange_after_work("start", {}, "");  // some start late, and no deadline of messages is theirs
  if (action == "victims" && rank != chosen) fail(ErrorKind::worker_failed, "connection closed by peer");
  if (action == "deaf" && rank != chosen) sleep_forever();
  if (action == "deaf") raise(SIGKILL);
  if (rank == chosen) act(action, control);
  if (action == "missing" && rank == chosen) sleep_forever();
  const int waiting[] = {0, chosen};
  if (action != "missing") {
    control.exchange("end", {}, "");
  } else if (rank == 0) {
    control.exchange("end", waiting, "");
  }
  control.console("rank " + std::to_string(rank) + " is done");
}

int run(const std::string& action, int chosen, const char* name) {
  std::printf("pid %d argv0 %s\n", getpid(), name);
  std::fflush(stdout);
  const Identity me = identify(std::chrono::seconds(30));
  if (action == "absent" && me.rank == chosen) sleep_forever();
  if (action == "nobody") sleep_forever();
  if (action == "stillborn" && me.rank == chosen) raise(SIGKILL);
  if (action == "deaf") std::signal(SIGTERM, SIG_IGN);
  if (action == "standstill") return stand_still(me, chosen, options_of(me, false));
  auto control = ControlClient::connect(options_of(me, action == "deaf"));
  if (action == "busy") {  // has no ear for a stop
    std::puts("training");
    std::fflush(stdout);
    sleep_forever();
  }
  if (action == "train") return train_until_stopped(*control);
  try {
    work(action, chosen, *control);
  } catch (const Error& error) {
    control->fail(error.kind(), error.what());
    throw;
  }
  control->finish(0);
  if (action == "teardown" && me.rank == chosen) std::abort();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return run(argc > 1 ? argv[1] : "none", argc > 2 ? std::atoi(argv[2]) : -1, argv[0]);
  } catch (const Error& error) {
    std::printf("error: %s\n", error.what());
    std::fflush(stdout);
    _exit(static_cast<int>(error.kind()));
  }
}
