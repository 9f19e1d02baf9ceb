// An embedded PMIx server for workers on this node: tells each who it is, as srun's PMIx plugin would.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/scratch_folder.h"
#include "runtime/control/socket.h"

namespace ananke {

// One per process, ever: libpmix 4.2 cannot start its server again after it has been finalised (its listener aborts the
// process). Threads of the library start with the signal mask of the caller, and SIGPIPE blocked.
class PmixServer {
 public:
  // Throws Error(resource) with PMIx's reason and the version; Error(internal) the second time.
  explicit PmixServer(int ranks);
  ~PmixServer();
  PmixServer(const PmixServer&) = delete;
  PmixServer& operator=(const PmixServer&) = delete;

  // This process's environment plus what makes a child this rank's PMIx client.
  std::vector<std::string> environment(int rank);
  // Readable when a client called PMIx_Abort.
  int descriptor() const { return wake_read_.get(); }
  struct Abort {
    int rank = 0;
    int status = 0;
    std::string message;
  };
  // What a readable descriptor() is about.
  std::optional<Abort> take_abort();

 private:
  void describe_job(int ranks);
  void close() noexcept;

  ScratchFolder folder_;  // the library's sockets and files; removed with the server
  std::string job_;       // namespace
  Descriptor wake_read_;
};

}  // namespace ananke
