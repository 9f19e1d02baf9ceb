// A folder for files that live as long as this process, and which goes with it. One that is killed cannot remove its
// own: the next that makes a folder of the same kind does so. Whose process lives is told by a lock on a file in it,
// which processes that are forked, and execute nothing, hold too.
#pragma once

#include <filesystem>
#include <string>

#include "runtime/base/descriptor.h"

namespace ananke {

class ScratchFolder {
 public:
  // Makes PARENT/PREFIX.XXXXXX, which only this user may enter, and removes those of this user that nobody holds any
  // more. `what` is what the message of a failure says that it is for; throws Error(resource).
  ScratchFolder(const std::filesystem::path& parent, const std::string& prefix, const std::string& what);
  ~ScratchFolder() { remove(); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void remove() noexcept;

 private:
  std::filesystem::path path_;
  Descriptor lock_;
};

}  // namespace ananke
