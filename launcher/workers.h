// Where a job's workers run, how they are ended, and what is heard of their end: on this node (local_workers.h), or on
// the nodes of an allocation (slurm/srun_workers.h). launch.h is the one user.
#pragma once

#include <poll.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "launcher/worker_process.h"

namespace ananke {

struct LaunchSpec;

using Variables = std::vector<std::pair<std::string, std::string>>;

class Workers {
 public:
  using Clock = std::chrono::steady_clock;

  struct News {
    enum class Kind {
      ended,    // status, when, out_of_memory
      aborted,  // called PMIx_Abort: number, message
      lost,     // whatever started the workers has ended, and nothing is known of this one; message
    };
    Kind kind = Kind::ended;
    int rank = 0;
    ExitStatus status = {};
    Clock::time_point when = {};
    bool out_of_memory = false;  // the kernel killed it for want of memory
    int number = 0;
    std::string message = {};
  };

  virtual ~Workers() = default;

  // What the control server listens on, and by what the workers find this node.
  virtual std::string listen_address() const = 0;
  virtual std::string control_host() const = 0;
  // Starts them, with these variables set. Once. Throws Error(resource) where that cannot be.
  virtual void start(const Variables& variables) = 0;
  // Descriptors that are readable when there is news.
  virtual void watch(std::vector<pollfd>& ready) const = 0;
  // What has happened since the last call. Of a rank, `ended` and `lost` come once and only one of them.
  virtual std::vector<News> take_news() = 0;
  // Every worker is on the control channel: what only helped it to come there may go.
  virtual void all_joined() {}
  // As far as is known: until `ended` or `lost` has been told.
  virtual bool is_running(int rank) const = 0;
  virtual int process(int rank) const = 0;        // 0: not known
  virtual std::string host(int rank) const = 0;   // of this rank, as far as is known
  virtual std::string state(int rank) const = 0;  // "running", ... what its kernel says now; empty: not known from here
  // Asks all to end, for those who do not listen to the control channel; then ends them. Neither waits.
  virtual void terminate() = 0;
  virtual void kill() = 0;
};

// The file that a rank's standard output and error are appended to.
std::filesystem::path log_of(const std::filesystem::path& run_dir, int rank);

}  // namespace ananke
