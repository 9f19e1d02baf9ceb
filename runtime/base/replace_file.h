// Writing a file so that its name only ever stands for all of it: a temporary name beside it, fsync, rename, fsync of
// the folder. A writer that dies leaves the old file, or none, and perhaps a `.NAME.partial.HOST.SPACE.PID` (SPACE: of
// process ids).
#pragma once

#include <filesystem>

namespace ananke {

// The name to write to first; in the same folder, hence on the same file system.
std::filesystem::path partial_name(const std::filesystem::path& final_name);
// Makes `partial` durable and gives it its final name, replacing what stood there. Throws Error(resource) naming the
// file and the system's reason.
void commit_file(const std::filesystem::path& partial, const std::filesystem::path& final_name);

// Removes, and says so, what writers of this file or folder, or of one whose name begins with `.NAME.`, left behind
// that have died on this host. What cannot be listed or removed stays.
void remove_stale_partials(const std::filesystem::path& final_name) noexcept;

// Removes the partial file when it goes out of scope without commit().
class ReplacedFile {
 public:
  explicit ReplacedFile(std::filesystem::path final_name);
  ~ReplacedFile();
  ReplacedFile(const ReplacedFile&) = delete;
  ReplacedFile& operator=(const ReplacedFile&) = delete;
  const std::filesystem::path& partial() const noexcept { return partial_; }
  void commit();

 private:
  std::filesystem::path final_;
  std::filesystem::path partial_;
  bool committed_ = false;
};

}  // namespace ananke
