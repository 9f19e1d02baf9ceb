#include "runtime/base/replace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/process.h"

namespace ananke {
namespace {

void sync_path(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const int result = descriptor < 0 ? -1 : ::fsync(descriptor);
  const int reason = errno;
  if (descriptor >= 0) ::close(descriptor);
  // Some file systems cannot sync a folder; that is no reason to refuse the file in it.
  if (result != 0 && reason != EINVAL)
    fail(ErrorKind::resource, "cannot sync {}: {}", path.string(), std::strerror(reason));
}

// ".partial.HOST.SPACE.": process ids mean something on one host and in one container only, and folders are shared
// between them.
std::string partial_mark() {
  std::string space = this_process().space;
  std::erase_if(space, [](char c) { return c < '0' || c > '9'; });
  return fmt::format(".partial.{}.{}.", host_name(), space);
}

// Whether `name` is a partial file of a process of this host that is gone.
bool is_stale(std::string_view name, std::string_view mark) {
  const std::size_t dot = name.rfind('.');
  pid_t process = 0;
  const char* end = name.data() + name.size();
  if (dot == std::string_view::npos || !name.substr(0, dot + 1).ends_with(mark)) return false;
  const auto [rest, error] = std::from_chars(name.data() + dot + 1, end, process);
  return error == std::errc() && rest == end && process > 0 && ::kill(process, 0) != 0 && errno == ESRCH;
}

// A device or a pipe is no file to be replaced: it would be gone.
void refuse_special(const std::filesystem::path& name) {
  std::error_code ignored;
  const auto kind = std::filesystem::symlink_status(name, ignored).type();
  using Type = std::filesystem::file_type;
  if (kind != Type::block && kind != Type::character && kind != Type::fifo && kind != Type::socket) return;
  fail(ErrorKind::resource, "cannot write {}: it is a device, a pipe or a socket; give the name of a file",
       name.string());
}

// What a symbolic link leads to is replaced, not the link.
std::filesystem::path behind_links(std::filesystem::path name) {
  std::error_code problem;
  if (std::filesystem::is_symlink(name, problem)) {
    std::filesystem::path target = std::filesystem::weakly_canonical(name, problem);
    if (!problem) name = std::move(target);
  }
  refuse_special(name);
  return name;
}

}  // namespace

std::filesystem::path partial_name(const std::filesystem::path& final_name) {
  return final_name.parent_path() / fmt::format(".{}{}{}", final_name.filename().string(), partial_mark(), ::getpid());
}

void remove_stale_partials(const std::filesystem::path& final_name) noexcept try {
  const std::string own = "." + final_name.filename().string() + ".";
  const std::string mark = partial_mark();
  const std::filesystem::path folder = final_name.parent_path();
  std::error_code problem;
  std::filesystem::directory_iterator entry(folder.empty() ? "." : folder, problem);
  for (; !problem && entry != std::filesystem::directory_iterator(); entry.increment(problem)) {
    const std::string name = entry->path().filename().string();
    if ((name.starts_with(own) || name.starts_with("." + own)) && is_stale(name, mark)) {
      std::error_code stays;
      std::filesystem::remove_all(entry->path(), stays);
      if (!stays) log_warning("removed {}, left unfinished by a process that has died", entry->path().string());
    }
  }
} catch (const std::exception&) {
  // Out of memory while tidying up.
}

void commit_file(const std::filesystem::path& partial, const std::filesystem::path& final_name) {
  refuse_special(final_name);
  sync_path(partial);
  if (std::rename(partial.c_str(), final_name.c_str()) != 0) {
    fail(ErrorKind::resource, "cannot rename {} to {}: {}", partial.string(), final_name.string(),
         std::strerror(errno));
  }
  const std::filesystem::path folder = final_name.parent_path();
  sync_path(folder.empty() ? "." : folder);
}

ReplacedFile::ReplacedFile(std::filesystem::path final_name)
    : final_(behind_links(std::move(final_name))), partial_(partial_name(final_)) {}

ReplacedFile::~ReplacedFile() {
  if (!committed_) ::unlink(partial_.c_str());
}

void ReplacedFile::commit() {
  commit_file(partial_, final_);
  committed_ = true;
}

}  // namespace ananke
