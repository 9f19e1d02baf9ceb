// Which of several failures was the first: a worker that dies takes others along, and their complaints about a lost
// peer may be heard before its death is.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/error.h"

namespace ananke {

struct Cause {
  enum class What {
    killed,        // by a signal; number
    exited,        // without having finished or said why; number is the exit code
    reported,      // said why itself: kind, message
    aborted,       // called PMIx_Abort; number is its status
    silent,        // no heartbeat; message: for how long, and the process's state
    no_progress,   // message: for how long
    not_joined,    // never came; message
    teardown,      // its work was done, but its process then ended badly; message
    disconnected,  // left the control channel, but its process lives
    lost,          // whatever had started the workers has ended; message
  };
  What what = What::reported;
  int rank = -1;
  int number = 0;
  ErrorKind kind = ErrorKind::worker_failed;
  std::string message = {};
  std::string host = {}, phase = {}, log = {};  // log: file of this rank
  std::string activity = {};                    // of a stall: the plugin calls it is inside of
  bool waits = false;                           // these only wait for others
  int process = 0;
  std::uint64_t step = 0;
  std::string item = {};    // of a stall: where in the schedule it is
  std::uint64_t place = 0;  // the same as a number, from 1
};

// "rank 2 (node1, process 77) was killed by signal 9 (SIGKILL) in phase 'step' of step 17".
std::string describe(const Cause& cause);

class FirstCause {
 public:
  using Clock = std::chrono::steady_clock;

  // Once a rank has given a cause, what follows from the same rank is its consequence and is ignored; only a lost
  // connection gives way to what explains it.
  void add(Cause cause, Clock::time_point when);
  bool any() const { return !seen_.empty(); }
  // When to decide: soon after a cause that stands on its own; later where all so far point at others.
  std::optional<Clock::time_point> settled_at() const;
  const Cause& result() const;  // any() is true

 private:
  struct Seen {
    Cause cause;
    Clock::time_point when;
  };
  static bool points_elsewhere(const Cause& cause);
  static bool is_before(const Seen& a, const Seen& b);
  static bool is_behind(const Seen& a, const Seen& b);
  std::vector<Seen> seen_;
};

}  // namespace ananke
