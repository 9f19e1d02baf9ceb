#include "runtime/base/scratch_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "runtime/base/error.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

constexpr const char* lock_name = ".held";

// Where it is a folder of this user, by itself and not by a link to it, whose lock can be had; the lock is kept until
// it is gone. One without a lock file is just being made, or is none of these.
void remove_if_left_behind(const fs::path& folder) {
  const Descriptor opened(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  if (!opened || ::fstat(opened.get(), &status) != 0 || status.st_uid != ::geteuid()) return;
  const Descriptor lock(::openat(opened.get(), lock_name, O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  if (!lock || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return;
  std::error_code ignored;
  fs::remove_all(folder, ignored);
}

void remove_left_behind(const fs::path& parent, const std::string& begin) {
  std::error_code ignored;
  std::vector<fs::path> alike;
  for (fs::directory_iterator one(parent, ignored), end; !ignored && one != end; one.increment(ignored)) {
    if (one->path().filename().string().starts_with(begin)) alike.push_back(one->path());
  }
  for (const fs::path& folder : alike) remove_if_left_behind(folder);
}

// Nothing where another process, which took it for left behind, has removed it before it was locked.
Descriptor lock_of(const fs::path& folder) {
  Descriptor lock(::open((folder / lock_name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return lock;
  ::flock(lock.get(), LOCK_EX);  // fails where the file system has no locks: nobody can take it for left behind either
  struct stat status {};
  if (::fstat(lock.get(), &status) == 0 && status.st_nlink > 0) return lock;
  errno = ENOENT;
  return Descriptor();
}

}  // namespace

ScratchFolder::ScratchFolder(const fs::path& parent, const std::string& prefix, const std::string& what) {
  constexpr int most_tries = 10;
  remove_left_behind(parent, prefix + ".");
  for (int tries = 0; !lock_; ++tries) {
    std::string name = (parent / (prefix + ".XXXXXX")).string();
    const bool made = ::mkdtemp(name.data()) != nullptr;
    if (made) lock_ = lock_of(name);
    path_ = name;
    if (lock_ || (made && errno == ENOENT && tries < most_tries)) continue;
    const int error = errno;
    if (made) remove();
    fail(ErrorKind::resource, "cannot make a folder {} for {}: {}; set TMPDIR to a folder that can be written", name,
         what, std::strerror(error));
  }
}

void ScratchFolder::remove() noexcept {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
  lock_.close();
}

}  // namespace ananke
