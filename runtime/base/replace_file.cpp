#include "runtime/base/replace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "runtime/base/error.h"

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

}  // namespace

std::filesystem::path partial_name(const std::filesystem::path& final_name) {
  return final_name.parent_path() / fmt::format(".{}.partial.{}", final_name.filename().string(), ::getpid());
}

void commit_file(const std::filesystem::path& partial, const std::filesystem::path& final_name) {
  sync_path(partial);
  if (std::rename(partial.c_str(), final_name.c_str()) != 0) {
    fail(ErrorKind::resource, "cannot rename {} to {}: {}", partial.string(), final_name.string(),
         std::strerror(errno));
  }
  const std::filesystem::path folder = final_name.parent_path();
  sync_path(folder.empty() ? "." : folder);
}

ReplacedFile::ReplacedFile(std::filesystem::path final_name)
    : final_(std::move(final_name)), partial_(partial_name(final_)) {}

ReplacedFile::~ReplacedFile() {
  if (!committed_) ::unlink(partial_.c_str());
}

void ReplacedFile::commit() {
  commit_file(partial_, final_);
  committed_ = true;
}

}  // namespace ananke
