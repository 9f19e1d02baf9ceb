#include "runtime/device/numa.h"

#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "runtime/base/kernel_text.h"
#include "runtime/base/read_file.h"

namespace ananke {
namespace {

constexpr int most_nodes = 1024;
constexpr std::size_t most_pages = 512;  // looked at

using NodeMask = std::array<unsigned long, most_nodes / (8 * sizeof(unsigned long))>;

}  // namespace

int numa_node_of_process(const std::filesystem::path& sys) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return -1;
  int found = -1;
  for (int node = 0; node < most_nodes; ++node) {
    const auto text = read_file(sys / fmt::format("devices/system/node/node{}/cpulist", node));
    if (!text) continue;
    const auto cpus = parse_number_list(*text);
    if (!cpus) return -1;
    bool any = false;
    for (std::size_t cpu = 0; cpu < CPU_SETSIZE && !any; ++cpu)
      any = CPU_ISSET(cpu, &mask) && contains_number(*cpus, cpu);
    if (any && found >= 0) return -1;
    if (any) found = node;
  }
  return found;
}

NumaPreference::NumaPreference(int node) {
  if (node < 0 || node >= most_nodes) return;
  NodeMask mask{};
  constexpr std::size_t bits = 8 * sizeof(unsigned long);
  mask[static_cast<std::size_t>(node) / bits] |= 1ul << (static_cast<std::size_t>(node) % bits);
  constexpr unsigned long nodes = most_nodes;
  if (syscall(SYS_get_mempolicy, &mode_before_, before_.data(), nodes, nullptr, 0ul) != 0) return;
  set_ = syscall(SYS_set_mempolicy, MPOL_PREFERRED, mask.data(), nodes) == 0;
}

NumaPreference::~NumaPreference() {
  if (!set_) return;
  const bool none = mode_before_ == MPOL_DEFAULT;  // which takes no nodes
  syscall(SYS_set_mempolicy, mode_before_, none ? nullptr : before_.data(), none ? 0ul : most_nodes);
}

NumaPages& NumaPages::operator+=(const NumaPages& more) {
  for (const auto& [node, pages] : more.on) on[node] += pages;
  unknown += more.unknown;
  if (why.empty()) why = more.why;
  return *this;
}

NumaPages numa_pages(const void* memory, std::size_t bytes) {
  NumaPages result;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(memory) / page * page;
  const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(memory) + bytes;
  const std::uintptr_t all = bytes == 0 ? 0 : (end - begin + page - 1) / page;
  std::vector<void*> pages;
  const std::uintptr_t looked_at = std::min<std::uintptr_t>(all, most_pages);
  for (std::uintptr_t i = 0; i < looked_at; ++i) {
    pages.push_back(reinterpret_cast<void*>(begin + all * i / looked_at * page));
  }
  std::vector<int> status(pages.size(), -ENOENT);
  // Without a list of nodes nothing is moved: it tells where each page is.
  if (!pages.empty() && syscall(SYS_move_pages, 0, pages.size(), pages.data(), nullptr, status.data(), 0) != 0) {
    result.unknown = pages.size();
    result.why = fmt::format("move_pages: {}", std::strerror(errno));
    return result;
  }
  for (const int node : status) {
    if (node >= 0) {
      ++result.on[node];
      continue;
    }
    ++result.unknown;
    result.why = fmt::format("move_pages says of a page: {}", std::strerror(-node));
  }
  return result;
}

std::string numa_verdict(const NumaPages& pages, int own, bool& wrong) {
  wrong = false;
  if (pages.on.empty()) {
    return fmt::format("on which NUMA node is UNKNOWN ({})", pages.why.empty() ? "there is none of it" : pages.why);
  }
  std::size_t known = 0, elsewhere = 0;
  std::string where;
  for (const auto& [node, count] : pages.on) {
    known += count;
    if (node != own) elsewhere += count;
    where += fmt::format("{}{} of them on node {}", where.empty() ? "" : ", ", count, node);
  }
  const std::string unknown = pages.unknown > 0 ? fmt::format(", {} UNKNOWN ({})", pages.unknown, pages.why) : "";
  if (own < 0) return fmt::format("{} pages looked at: {}{}; the device's own node is UNKNOWN", known, where, unknown);
  wrong = elsewhere > 0;
  if (!wrong) return fmt::format("on NUMA node {}, its own: {} pages looked at{}", own, known, unknown);
  return fmt::format("{} of {} pages looked at are not on its own NUMA node {}: {}{}", elsewhere, known, own, where,
                     unknown);
}

}  // namespace ananke
