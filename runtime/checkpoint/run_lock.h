// Keeps a run folder to one job at a time, also between machines and on file systems without working locks (Lustre,
// GPFS, NFS): nothing is used but link, rename and reading.
//
//   RUN_DIR/launcher.lock   who holds the folder: host, process, boot, a random token, and a beat that the holder
//   renews
//
//   take     link(2) gives a whole file the name, and fails where it is taken: there is never half a lock
//   judge    a holder of this machine lives or does not; any other is watched, by the watcher's own clock: it lives as
//            long as its file changes, and has lost the folder when it does not for `patience`
//   replace  the file is renamed away and looked at again: if it has changed, it goes back
//   fence    who takes the folder renames away every checkpoint that is being written there. A holder that slept
//   through
//            its loss thus finds nothing to give a final name to; and it asks check_run_owner() before it writes
//
// Neither a dead holder's file blocks for ever, nor does a living one's get taken; one that was stopped for longer than
// `patience` writes nothing more.
#pragma once

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "runtime/base/process.h"

namespace ananke {

struct RunLockTimes {
  std::chrono::milliseconds beat{5'000};       // between two signs of life
  std::chrono::milliseconds patience{60'000};  // without one until the folder is taken over
};

struct SeenLock;

class RunLock {
 public:
  using Say = std::function<void(const std::string& line)>;

  // Takes the folder (which exists). `say` is told when a holder has to be watched, and when one is replaced. Throws
  // Error(config) naming the holder, since when it holds the folder and what to do, as soon as it is known to live;
  // Error(resource) where the folder cannot be written. Starts a thread that renews the beat.
  explicit RunLock(std::filesystem::path run_dir, Say say = {}, RunLockTimes times = {},
                   ProcessIdentity self = this_process());
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Names this hold, not only this process. For check_run_owner().
  const std::string& token() const noexcept { return token_; }
  // Why the folder is no longer held, as a sentence; empty while it is. Known at most a beat after this process could
  // run again. From any thread.
  std::string lost() const;

 private:
  void take();
  bool link_own();
  void remove_remains() const;
  void watch(const SeenLock& seen);
  void replace(const SeenLock& seen);
  void beat();
  void run();

  std::filesystem::path run_dir_, file_;
  Say say_;
  RunLockTimes times_;
  ProcessIdentity self_;
  std::string token_, since_;
  mutable std::mutex mutex_;
  std::condition_variable ending_;
  bool end_ = false;
  std::string lost_;
  std::thread thread_;
};

// Who holds the folder, as one look shows: nothing is changed and nobody watched.
struct RunHolder {
  std::string name;   // "process 12 on a-host"
  std::string since;  // may be empty
  Life life;
};
std::optional<RunHolder> holder_of_run(const std::filesystem::path& run_dir);

// Throws Error(config), as RunLock does at once, where the holder is known to live.
void check_not_held(const std::filesystem::path& run_dir);

// Returns when the holder with this token has the folder at this moment, as the file system's server sees it. Throws
// Error(checkpoint) naming who has it instead, or that there has been no lock at all for `patience`.
void check_run_owner(const std::filesystem::path& run_dir, const std::string& token,
                     std::chrono::milliseconds patience = std::chrono::seconds(12));

// The part of a token that marks the names of what its holder is writing.
std::string owner_mark(const std::string& token);

}  // namespace ananke
