// Keeps a run folder to one launcher at a time, on file systems without working locks too: a file made exclusively that
// says who holds it.
#pragma once

#include <filesystem>

namespace ananke {

class RunGuard {
 public:
  // Takes the folder (which exists). The file of a launcher that is gone (same machine and boot, no such process) is
  // replaced. Throws Error(config) naming the holder, where it lives or where that cannot be known from here.
  explicit RunGuard(const std::filesystem::path& run_dir);
  ~RunGuard();
  RunGuard(const RunGuard&) = delete;
  RunGuard& operator=(const RunGuard&) = delete;

 private:
  std::filesystem::path file_;
};

}  // namespace ananke
