#include "runtime/checkpoint/durable.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/units.h"

namespace ananke {
namespace {

class Descriptor {
 public:
  Descriptor(const std::filesystem::path& path, int flags) : value_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (value_ < 0) fail(ErrorKind::checkpoint, "cannot open {}: {}", path.string(), reason(errno, path));
  }
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const noexcept { return value_; }
  // Some network file systems report a full disk or quota only here.
  void close(const std::filesystem::path& path) {
    const int status = ::close(std::exchange(value_, -1));
    if (status != 0) fail(ErrorKind::checkpoint, "cannot close {}: {}", path.string(), reason(errno, path));
  }

 private:
  int value_;
};

void sync(int descriptor, const std::filesystem::path& path) {
  while (::fsync(descriptor) != 0) {
    if (errno == EINTR) continue;
    // Some file systems cannot sync folders; they order these operations themselves.
    if (errno == EINVAL) return;
    fail(ErrorKind::checkpoint, "cannot sync {}: {}", path.string(), reason(errno, path));
  }
}

// The highest folder above `path` that is on the same file system.
std::filesystem::path mount_point(std::filesystem::path path) {
  struct stat here {
  }, above{};
  std::error_code ignored;
  path = std::filesystem::absolute(path, ignored);
  while (::stat(path.c_str(), &here) != 0 && path.has_relative_path()) path = path.parent_path();
  while (path.has_relative_path() && ::stat(path.parent_path().c_str(), &above) == 0 && above.st_dev == here.st_dev) {
    path = path.parent_path();
  }
  return path;
}

// "needs 3.00 GiB; the file system at /scratch has 12.0 MiB of 2.00 TiB and 1.20M files free".
std::string room_at(const std::filesystem::path& path, std::uint64_t needed) {
  std::string text = needed == 0 ? "" : fmt::format("it needs {}; ", format_bytes(needed));
  const std::filesystem::path mount = mount_point(path);
  struct statvfs room {};
  if (::statvfs(mount.c_str(), &room) != 0) return text + "the file system at " + mount.string();
  text += fmt::format("the file system at {} has {} of {} free", mount.string(),
                      format_bytes(room.f_bavail * room.f_frsize), format_bytes(room.f_blocks * room.f_frsize));
  // Some file systems do not count files.
  if (room.f_files > 0) text += fmt::format(" and room for {} files", format_count(static_cast<double>(room.f_favail)));
  return text;
}

}  // namespace

std::string reason(int error, const std::filesystem::path& path, std::uint64_t needed) {
  const char* hint = "";
  switch (error) {
    case ENOSPC:
      return fmt::format("{}: {}; free space or inodes there, or set run_dir to another one", std::strerror(error),
                         room_at(path, needed));
    case EDQUOT:
      return fmt::format(
          "{}: {}; the quota of the user, group or project there is used up, in space or in inodes (number of files): "
          "remove files, or set run_dir to another file system",
          std::strerror(error), room_at(path, needed));
    case EFBIG: hint = "; the limit on a file's size is too low (ulimit -f)"; break;
    case EACCES:
    case EPERM:
    case EROFS: hint = "; make the run folder writable, or set run_dir to another one"; break;
    case ESTALE:
    case EIO: hint = "; the file system is in trouble: look at the node's kernel log"; break;
    default: break;
  }
  return fmt::format("{}{}", std::strerror(error), hint);
}

void make_folder(const std::filesystem::path& folder) {
  const auto parent = folder.parent_path();
  if (::mkdir(folder.c_str(), 0777) == 0) return sync_path(parent.empty() ? "." : parent);
  const int error = errno;
  if (error == ENOENT && !parent.empty() && parent != folder) {
    make_folder(parent);
    return make_folder(folder);
  }
  std::error_code ignored;
  if (error == EEXIST && std::filesystem::is_directory(folder, ignored)) return;
  fail(ErrorKind::checkpoint, "cannot create folder {}: {}", folder.string(), reason(error, folder));
}

void sync_path(const std::filesystem::path& path) {
  const Descriptor file(path, O_RDONLY);
  sync(file.get(), path);
}

void write_durably(const std::filesystem::path& path, std::string_view bytes) {
  auto temporary = path;
  temporary += ".tmp";
  Descriptor file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
  while (!bytes.empty()) {
    const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      fail(ErrorKind::checkpoint, "cannot write {} more bytes to {}: {}", bytes.size(), temporary.string(),
           reason(errno, temporary, bytes.size()));
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  sync(file.get(), temporary);
  file.close(temporary);
  rename_durably(temporary, path);
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    fail(ErrorKind::checkpoint, "cannot rename {} to {}: {}", from.string(), to.string(), reason(errno, to));
  }
  sync_path(to.parent_path().empty() ? "." : to.parent_path());
}

void replace_folder(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::error_code ignored;
  if (!std::filesystem::exists(to, ignored)) return rename_durably(from, to);
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
    sync_path(to.parent_path());
    remove_folder(from);
    return;
  }
  // Any other error, such as `from` being gone, must leave `to` where it is.
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) {
    fail(ErrorKind::checkpoint, "cannot rename {} to {}: {}", from.string(), to.string(), reason(errno, to));
  }
  auto old = to;
  old += ".deleting";
  remove_folder(old);
  rename_durably(to, old);
  rename_durably(from, to);
  remove_folder(old);
}

void remove_folder(const std::filesystem::path& folder) noexcept {
  try {
    std::error_code error;
    if (!std::filesystem::exists(folder, error)) return;
    auto doomed = folder;
    if (folder.extension() != ".deleting") {
      doomed += ".deleting";
      std::filesystem::remove_all(doomed);
      std::filesystem::rename(folder, doomed);
    }
    std::filesystem::remove_all(doomed);
  } catch (const std::exception& error) {
    log_warning("cannot remove {}: {}; it takes up space until it is removed", folder.string(), error.what());
  }
}

}  // namespace ananke
