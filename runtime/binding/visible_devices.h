// CUDA_VISIBLE_DEVICES as text: CUDA itself stops reading at the first entry that it does not know and says nothing.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ananke {

struct VisibleText {
  bool set = false;                  // false: all devices are visible
  std::vector<std::string> entries;  // "0", "GPU-8932f937", "MIG-..."; none: no device is visible
};

// `value` as getenv() gives it. "-1" and Slurm's "NoDevFiles" hide all. Throws Error(config) quoting the variable for
// an entry that is none, and for one that comes twice.
VisibleText read_visible_devices(const char* value);

// Throws Error(config) where CUDA sees fewer devices than the text lists, naming the entry where it stopped.
void check_all_visible(const VisibleText& text, std::size_t seen);

}  // namespace ananke
