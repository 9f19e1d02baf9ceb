#include "runtime/checkpoint/run_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <optional>
#include <random>
#include <sstream>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/units.h"
#include "runtime/checkpoint/folder.h"

namespace ananke {

// A lock's file at one moment.
struct SeenLock {
  std::string text;
  timespec changed{};
  ino_t inode = 0;
  // From the text; empty where it is no lock of ours.
  std::string token, since;
  ProcessIdentity holder;
  bool same_file(const SeenLock& other) const {
    return text == other.text && changed.tv_sec == other.changed.tv_sec && changed.tv_nsec == other.changed.tv_nsec;
  }
};

namespace {

using Path = std::filesystem::path;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::string_view beat_mark = "\nbeat ";
constexpr int beat_digits = 12;

class File {
 public:
  File(const Path& path, int flags) : value_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  ~File() { close(); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const noexcept { return value_; }
  explicit operator bool() const noexcept { return value_ >= 0; }
  bool close() noexcept { return value_ < 0 || ::close(std::exchange(value_, -1)) == 0; }

 private:
  int value_;
};

Path beside(const Path& file, const std::string& ending) { return file.string() + "." + ending; }

Path lock_file(const Path& run_dir) { return run_dir / "launcher.lock"; }

[[noreturn]] void fail_on(const Path& path, const char* action, int error) {
  fail(ErrorKind::resource, "cannot {} {}: {}; check that the run folder can be written and has room", action,
       path.string(), std::strerror(error));
}

void parse(SeenLock& lock) {
  std::istringstream stream(lock.text);
  for (std::string line; std::getline(stream, line);) {
    const auto space = line.find(' ');
    if (space == std::string::npos) continue;
    const std::string key = line.substr(0, space), value = line.substr(space + 1);
    if (key == "host") lock.holder.host = value;
    if (key == "process") std::from_chars(value.data(), value.data() + value.size(), lock.holder.process);
    if (key == "since") lock.since = value;
    if (key == "start") lock.holder.start = value;
    if (key == "boot") lock.holder.boot = value;
    if (key == "space") lock.holder.space = value;
    if (key == "token") lock.token = value;
  }
}

// Opening is what makes a network file system ask its server; nothing where there is no such file.
std::optional<SeenLock> read_lock(const Path& path) {
  for (;;) {
    const File file(path, O_RDONLY);
    if (!file && errno == ENOENT) return std::nullopt;
    if (!file && errno == ESTALE) continue;
    struct stat status {};
    std::array<char, 4096> text{};
    const ssize_t size = file && ::fstat(file.get(), &status) == 0 ? ::read(file.get(), text.data(), text.size()) : -1;
    if (size < 0 && errno == ESTALE) continue;
    if (size < 0) fail_on(path, "read", errno);
    SeenLock lock;
    lock.text.assign(text.data(), static_cast<std::size_t>(size));
    lock.changed = status.st_mtim;
    lock.inode = status.st_ino;
    parse(lock);
    return lock;
  }
}

// Writes a new file; false where the name is taken.
bool create(const Path& path, const std::string& text) {
  File file(path, O_WRONLY | O_CREAT | O_EXCL);
  if (!file && errno == EEXIST) return false;
  if (!file) fail_on(path, "write", errno);
  errno = ENOSPC;  // what a short write means
  const bool written =
      ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::fsync(file.get()) == 0;
  if (written && file.close()) return true;
  const int error = errno;
  ::unlink(path.c_str());
  fail_on(path, "write", error);
}

bool has_no_links(int error) {
  return error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EMLINK || error == EXDEV;
}

// Gives `from` the name `to` too; false where that is taken or `from` is gone.
bool give_name(const Path& from, const Path& to) {
  if (::link(from.c_str(), to.c_str()) == 0) return true;
  const int error = errno;
  // A network may lose the answer to a request that was carried out, and repeat it.
  struct stat status {};
  if (::stat(from.c_str(), &status) == 0 && status.st_nlink == 2) return true;
  if (error == EEXIST) return false;
  if (has_no_links(error)) {
    const auto lock = read_lock(from);
    return lock && create(to, lock->text);
  }
  if (error == ENOENT && std::filesystem::is_directory(to.parent_path())) return false;
  fail_on(to, "write", error);
}

std::string describe(const SeenLock& lock) {
  if (lock.token.empty()) return "somebody who left no name";
  return fmt::format("process {} on {}", lock.holder.process, lock.holder.host);
}

std::string text_of(milliseconds time) { return format_duration(std::chrono::duration<double>(time).count()); }

[[noreturn]] void refuse(const Path& run_dir, const SeenLock& lock, const std::string& how) {
  fail(ErrorKind::config,
       "the run folder {} is in use: {} holds it{} ({}); wait for its end, end it there, or choose another run_dir "
       "(--run-dir DIR)",
       run_dir.string(), describe(lock), lock.since.empty() ? "" : " since " + lock.since, how);
}

[[noreturn]] void refuse_living(const Path& run_dir, const SeenLock& lock) {
  refuse(run_dir, lock, "its process is " + state_of(lock.holder.process));
}

std::string make_token() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

}  // namespace

RunLock::RunLock(Path run_dir, Say say, RunLockTimes times, ProcessIdentity self)
    : run_dir_(std::move(run_dir)),
      file_(lock_file(run_dir_)),
      say_(std::move(say)),
      times_(times),
      self_(std::move(self)),
      token_(make_token()) {
  take();
  try {
    remove_remains();
    retire_unfinished(checkpoints_folder(run_dir_));
  } catch (...) {
    ::unlink(file_.c_str());
    throw;
  }
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

RunLock::~RunLock() {
  {
    std::lock_guard lock(mutex_);
    end_ = true;
  }
  ending_.notify_all();
  thread_.join();
  try {
    const auto seen = read_lock(file_);
    if (seen && seen->token == token_) ::unlink(file_.c_str());
  } catch (const std::exception& error) {
    log_warning("{} stays: {}", file_.string(), error.what());
  }
}

std::string RunLock::lost() const {
  std::lock_guard lock(mutex_);
  return lost_;
}

// A name beside the lock's, for as long as it takes, so that the lock's name only ever stands for a whole file.
bool RunLock::link_own() {
  const Path own = beside(file_, owner_mark(token_));
  const std::string text =
      fmt::format("host {}\nprocess {}\nsince {}\nstart {}\nboot {}\nspace {}\ntoken {}{}{:0{}}\n", self_.host,
                  self_.process, since_, self_.start, self_.boot, self_.space, token_, beat_mark, 0, beat_digits);
  ::unlink(own.c_str());
  create(own, text);
  const bool taken = give_name(own, file_);
  ::unlink(own.c_str());
  return taken;
}

// Of holders that were killed, and of those who want the folder at this moment: they look again.
void RunLock::remove_remains() const {
  const std::string start = file_.filename().string() + ".";
  for (const auto& entry : std::filesystem::directory_iterator(run_dir_)) {
    if (entry.path().filename().string().starts_with(start)) ::unlink(entry.path().c_str());
  }
}

void RunLock::take() {
  for (;;) {
    since_ = utc_now();
    if (link_own()) return;
    const auto seen = read_lock(file_);
    if (!seen) continue;
    switch (life_of(seen->holder)) {
      case Life::alive: refuse_living(run_dir_, *seen);
      case Life::gone: replace(*seen); break;
      case Life::unknown: watch(*seen); break;
    }
  }
}

// Until the holder shows that it lives, the file is gone or another's, or patience is at its end.
void RunLock::watch(const SeenLock& seen) {
  if (say_) {
    say_(fmt::format(
        "the run folder {} is held by {}{}; whether that still lives cannot be seen from here: waiting up "
        "to {} for a sign of life",
        run_dir_.string(), describe(seen), seen.since.empty() ? "" : " since " + seen.since, text_of(times_.patience)));
  }
  const milliseconds pause = times_.beat / 5;
  milliseconds silent{0};
  auto looked = Clock::now();
  while (silent < times_.patience) {
    std::this_thread::sleep_for(pause);
    const auto now_seen = read_lock(file_);
    const auto now = Clock::now();
    // A file system that stands still stands still for the holder too: that is no silence.
    silent += std::min(std::chrono::duration_cast<milliseconds>(now - looked), 2 * pause);
    looked = now;
    if (!now_seen || now_seen->token != seen.token) return;
    if (now_seen->inode != seen.inode || !now_seen->same_file(seen)) {
      refuse(run_dir_, *now_seen, "it has just given a sign of life");
    }
  }
  replace(seen);
}

// Several may find the same silent holder: one gets to rename the file, and what it then has is looked at again.
void RunLock::replace(const SeenLock& seen) {
  const Path moved = beside(file_, owner_mark(token_) + ".replaced");
  if (::rename(file_.c_str(), moved.c_str()) != 0) {
    if (errno == ENOENT) return;
    fail_on(file_, "replace", errno);
  }
  const auto now_seen = read_lock(moved);
  const bool same = now_seen && now_seen->same_file(seen);
  if (!same && now_seen) give_name(moved, file_);
  ::unlink(moved.c_str());
  if (same && say_) {
    say_(fmt::format("the run folder {} was held by {}{}, which is {}: taken over", run_dir_.string(), describe(seen),
                     seen.since.empty() ? "" : " since " + seen.since,
                     life_of(seen.holder) == Life::gone ? "gone" : "silent"));
  }
}

void RunLock::beat() {
  const File file(file_, O_RDWR);
  if (!file && errno == ENOENT) {
    // Somebody has removed it, or stopped while replacing a file that was not ours.
    if (link_own()) log_warning("{} was removed while this job holds it; it is there again", file_.string());
    return;
  }
  struct stat status {};
  std::array<char, 4096> text{};
  const ssize_t size = file ? ::pread(file.get(), text.data(), text.size(), 0) : -1;
  if (size < 0 || ::fstat(file.get(), &status) != 0) fail_on(file_, "read", errno);
  SeenLock seen;
  seen.text.assign(text.data(), static_cast<std::size_t>(size));
  parse(seen);
  if (seen.token != token_) {
    std::lock_guard lock(mutex_);
    lost_ = fmt::format(
        "the run folder {} was taken over by {} at {}: this job, which held it since {}, had given no sign of life for "
        "{}; it writes nothing more there",
        run_dir_.string(), describe(seen), seen.since, since_, text_of(times_.patience));
    return;
  }
  // Either change is a sign of life; a full disk or quota may refuse the first.
  const auto at = seen.text.find(beat_mark);
  std::uint64_t beats = 0;
  bool beaten = false;
  if (at != std::string::npos) {
    const char* digits = seen.text.data() + at + beat_mark.size();
    std::from_chars(digits, digits + beat_digits, beats);
    const std::string next = fmt::format("{:0{}}", beats + 1, beat_digits);
    beaten = ::pwrite(file.get(), next.data(), next.size(), static_cast<off_t>(at + beat_mark.size())) > 0;
  }
  if (::futimens(file.get(), nullptr) != 0 && !beaten) fail_on(file_, "renew", errno);
}

void RunLock::run() {
  bool warned = false;
  std::unique_lock lock(mutex_);
  while (!ending_.wait_for(lock, times_.beat, [this] { return end_; }) && lost_.empty()) {
    lock.unlock();
    try {
      beat();
      warned = false;
    } catch (const std::exception& error) {
      if (!std::exchange(warned, true)) {
        log_warning("{}; another job may take the run folder over after {}", error.what(), text_of(times_.patience));
      }
    }
    lock.lock();
  }
}

std::optional<RunHolder> holder_of_run(const Path& run_dir) {
  const auto seen = read_lock(lock_file(run_dir));
  if (!seen) return std::nullopt;
  return RunHolder{describe(*seen), seen->since, life_of(seen->holder)};
}

void check_not_held(const Path& run_dir) {
  const auto seen = read_lock(lock_file(run_dir));
  if (seen && life_of(seen->holder) == Life::alive) refuse_living(run_dir, *seen);
}

std::string owner_mark(const std::string& token) { return token.substr(0, 12); }

void check_run_owner(const Path& run_dir, const std::string& token, milliseconds patience) {
  const Path file = lock_file(run_dir);
  const Path witness = beside(file, fmt::format("{}.{}.seen", owner_mark(token), ::getpid()));
  const auto until = Clock::now() + patience;
  for (;;) {
    // A second name of the file is made by the server, whatever this machine remembers of the first.
    const bool linked = ::link(file.c_str(), witness.c_str()) == 0;
    const bool missing = !linked && errno == ENOENT;
    const auto seen = missing ? std::nullopt : read_lock(linked ? witness : file);
    if (linked) ::unlink(witness.c_str());
    if (seen && seen->token == token) return;
    if (seen) {
      fail(ErrorKind::checkpoint,
           "the run folder {} is held by {}{}, no longer by this job, which writes nothing more there; go on from its "
           "checkpoints with --resume once that other job is at its end",
           run_dir.string(), describe(*seen), seen->since.empty() ? "" : " since " + seen->since);
    }
    // Its holder puts a lock back that somebody has removed.
    if (Clock::now() > until) {
      fail(ErrorKind::checkpoint,
           "{} is gone, and for {} nobody has put it back: the launcher of this job is stopped or dead, and nothing "
           "more "
           "is written in the run folder",
           file.string(), text_of(patience));
    }
    std::this_thread::sleep_for(milliseconds(50));
  }
}

}  // namespace ananke
