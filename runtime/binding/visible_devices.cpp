#include "runtime/binding/visible_devices.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/printable.h"

namespace ananke {
namespace {

constexpr std::string_view blanks = " \t";

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

bool is_entry(std::string_view text) {
  if (text.starts_with("GPU-") || text.starts_with("MIG-")) return text.size() > 4;
  return !text.empty() && text.size() <= 4 && text.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace

VisibleText read_visible_devices(const char* value) {
  if (value == nullptr) return {};
  VisibleText result{.set = true, .entries = {}};
  const std::string_view all = trimmed(value);
  if (all.empty() || all == "-1" || all == "NoDevFiles") return result;
  for (std::string_view rest = all;;) {
    const auto comma = rest.find(',');
    const std::string_view entry = trimmed(rest.substr(0, comma));
    if (!is_entry(entry)) {
      fail(ErrorKind::config,
           "the environment says CUDA_VISIBLE_DEVICES='{}', and '{}' is no device: write ordinals or UUIDs "
           "(`nvidia-smi -L`), such as 0,1,2,3, or unset it",
           printable(all, 200), printable(entry, 80));
    }
    if (std::ranges::find(result.entries, entry) != result.entries.end()) {
      fail(ErrorKind::config,
           "the environment says CUDA_VISIBLE_DEVICES='{}', which names device {} twice; every rank needs one of its "
           "own: correct or unset it",
           printable(all, 200), entry);
    }
    result.entries.emplace_back(entry);
    if (comma == std::string_view::npos) return result;
    rest.remove_prefix(comma + 1);
  }
}

void check_all_visible(const VisibleText& text, std::size_t seen) {
  if (!text.set || text.entries.size() <= seen) return;
  const std::string& first = text.entries[seen];
  const char* why = first.starts_with("MIG-") ? "a process can use one MIG instance"
                                              : "there is no such device on this node, or it is hidden from this job";
  fail(ErrorKind::config,
       "the environment says CUDA_VISIBLE_DEVICES='{}', {} devices, but CUDA sees {} of them and stops at '{}': {}; "
       "correct the list, or unset it",
       fmt::join(text.entries, ","), text.entries.size(), seen, first, why);
}

}  // namespace ananke
