// On which NUMA node of the host memory lies, and a wish for where it shall. Linux's own calls, without libnuma; where
// a container or a kernel does not allow them the answer is "unknown", never a guess.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <map>
#include <string>

namespace ananke {

// The node that all CPUs belong to on which this thread may run; -1: there are several, or the files do not say.
int numa_node_of_process(const std::filesystem::path& sys = "/sys");

// While it lives, memory that this thread touches first is taken from `node` as long as that has some (-1: no wish).
class NumaPreference {
 public:
  explicit NumaPreference(int node);
  ~NumaPreference();
  NumaPreference(const NumaPreference&) = delete;
  NumaPreference& operator=(const NumaPreference&) = delete;
  bool granted() const noexcept { return set_; }

 private:
  bool set_ = false;
  int mode_before_ = 0;
  std::array<unsigned long, 16> before_{};  // nodes of the policy before
};

// Of some pages, evenly spread over the memory asked about.
struct NumaPages {
  std::map<int, std::size_t> on;  // pages by node
  std::size_t unknown = 0;        // not there yet, or the kernel does not say
  std::string why;                // it does not, in words; or empty
  NumaPages& operator+=(const NumaPages& more);
};
NumaPages numa_pages(const void* memory, std::size_t bytes);

// "on NUMA node 1, its own (verified, 512 pages looked at)"; "UNKNOWN: ...". `wrong` is set where some are elsewhere.
std::string numa_verdict(const NumaPages& pages, int own, bool& wrong);

}  // namespace ananke
