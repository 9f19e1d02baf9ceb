#include "runtime/memory/node_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <optional>

#include "runtime/base/kernel_text.h"
#include "runtime/base/read_file.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

std::uint64_t value(const KernelTable& table, std::string_view name) {
  const auto found = table.find(name);
  return found == table.end() ? 0 : found->second;
}

// What a table of one NUMA node or of the whole node says alike.
void fill(const KernelTable& table, NumaMemory& numa) {
  numa.set_total(value(table, "MemTotal"));
  numa.set_free(std::min(value(table, "MemFree"), numa.total()));
  numa.set_active_file(value(table, "Active(file)"));
  numa.set_inactive_file(value(table, "Inactive(file)"));
  numa.set_dirty(value(table, "Dirty"));
  numa.set_writeback(value(table, "Writeback"));
  numa.set_shmem(value(table, "Shmem"));
  numa.set_locked(value(table, "Mlocked"));
  numa.set_anonymous(value(table, "AnonPages"));
  numa.set_slab(table.contains("Slab") ? value(table, "Slab")
                                       : value(table, "SReclaimable") + value(table, "SUnreclaim"));
  numa.set_page_tables(value(table, "PageTables") + value(table, "SecPageTables"));
  numa.set_kernel_stacks(value(table, "KernelStack") + value(table, "ShadowCallStack"));
}

// Of all sizes where the kernel lists them; else of the default size, which is `size` bytes.
void fill_huge_pages(const fs::path& folder, const KernelTable& table, std::uint64_t size, NumaMemory& numa) {
  std::uint64_t all = 0, unused = 0;
  bool listed = false;
  std::error_code none;
  for (fs::directory_iterator entry(folder / "hugepages", none), end; !none && entry != end; entry.increment(none)) {
    const std::string name = entry->path().filename();
    constexpr std::string_view prefix = "hugepages-";
    if (!name.starts_with(prefix) || !name.ends_with("kB")) continue;
    const auto kib = parse_number(std::string_view(name).substr(prefix.size(), name.size() - prefix.size() - 2));
    const auto count = parse_number(read_file(entry->path() / "nr_hugepages").value_or(""));
    const auto idle = parse_number(read_file(entry->path() / "free_hugepages").value_or(""));
    if (!kib || !count) continue;
    listed = true;
    all += *kib * 1024 * *count;
    unused += *kib * 1024 * std::min(idle.value_or(0), *count);
  }
  if (!listed) {
    all = value(table, "HugePages_Total") * size;
    unused = std::min(all, value(table, "HugePages_Free") * size);
  }
  numa.set_huge_pages(all);
  numa.set_huge_pages_free(unused);
}

class Reader {
 public:
  Reader(fs::path root, const std::string& name) : root_(std::move(root)) { node_.set_node(name); }

  NodeMemory read() {
    const std::optional<KernelTable> whole = table("proc/meminfo");
    if (whole) {
      node_.set_vmalloc(value(*whole, "VmallocUsed"));
      node_.set_percpu(value(*whole, "Percpu"));
      huge_page_ = value(*whole, "Hugepagesize");
    }
    read_numa_nodes();
    if (node_.numa().empty()) read_undivided(whole);
    read_watermarks();
    return std::move(node_);
  }

 private:
  void trouble(const std::string& sentence) { node_.add_trouble(sentence); }

  std::optional<KernelTable> table(const fs::path& file) {
    const std::optional<std::string> text = read_file(root_ / file);
    if (!text) {
      trouble(fmt::format("{} cannot be read", (root_ / file).string()));
      return std::nullopt;
    }
    return parse_kernel_table(*text);
  }

  void read_numa_nodes() {
    const fs::path folder = root_ / "sys/devices/system/node";
    std::map<std::uint64_t, fs::path> found;
    std::error_code none;
    for (fs::directory_iterator entry(folder, none), end; !none && entry != end; entry.increment(none)) {
      const std::string name = entry->path().filename();
      const auto id = name.starts_with("node") ? parse_number(std::string_view(name).substr(4)) : std::nullopt;
      if (id && *id < UINT32_MAX) found.emplace(*id, entry->path());
    }
    std::optional<std::vector<NumberRange>> online;
    if (const auto text = read_file(folder / "online")) online = parse_number_list(*text);
    for (const auto& [id, path] : found) {
      NumaMemory& numa = *node_.add_numa();
      numa.set_id(static_cast<std::uint32_t>(id));
      numa.set_online(!online || contains_number(*online, id));
      if (numa.online()) read_numa(path, numa);
    }
  }

  void read_numa(const fs::path& path, NumaMemory& numa) {
    const std::optional<std::string> cpus = read_file(path / "cpulist");
    if (!cpus || !parse_number_list(*cpus)) {
      trouble(fmt::format("the CPUs of NUMA node {} are not known (cpulist); its memory is not counted", numa.id()));
      return;
    }
    numa.set_cpus(cpus->substr(0, cpus->find_last_not_of(" \n") + 1));
    const std::optional<std::string> text = read_file(path / "meminfo");
    const KernelTable table = parse_kernel_table(text.value_or(""));
    if (!table.contains("MemTotal") || !table.contains("MemFree")) {
      trouble(fmt::format("meminfo of NUMA node {} {}; its memory is not counted", numa.id(),
                          text ? "has no MemTotal and MemFree" : "cannot be read"));
      return;
    }
    fill(table, numa);
    numa.set_file_pages(value(table, "FilePages"));
    fill_huge_pages(path, table, huge_page_, numa);
    numa.set_read(true);
  }

  // A kernel without NUMA, or a container that hides it.
  void read_undivided(const std::optional<KernelTable>& whole) {
    node_.set_undivided(true);
    NumaMemory& numa = *node_.add_numa();
    numa.set_id(0);
    numa.set_online(true);
    numa.set_cpus("all");
    if (!whole || !whole->contains("MemTotal") || !whole->contains("MemFree")) {
      if (whole) trouble("/proc/meminfo has no MemTotal and MemFree");
      return;
    }
    fill(*whole, numa);
    numa.set_file_pages(value(*whole, "Cached") + value(*whole, "Buffers") + value(*whole, "SwapCached"));
    fill_huge_pages(root_ / "sys/kernel/mm", *whole, huge_page_, numa);
    numa.set_read(true);
  }

  // The sum of the zones' "low" marks: below them the kernel reclaims instead of giving. Counted in pages, whose size
  // follows from the pages that make up the node's MemTotal.
  void read_watermarks() {
    const std::optional<std::string> text = read_file(root_ / "proc/zoneinfo");
    if (!text) return;
    std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>> pages;  // by node: low, managed
    std::uint64_t node = 0;
    for (std::size_t at = 0; at < text->size();) {
      const std::size_t end = std::min(text->find('\n', at), text->size());
      std::string_view line(text->data() + at, end - at);
      at = end + 1;
      line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
      if (line.starts_with("Node ")) {
        node = parse_number(line.substr(5, line.find(',') - 5)).value_or(UINT32_MAX);
      } else if (line.starts_with("low ")) {
        pages[node].first += parse_number(line.substr(4)).value_or(0);
      } else if (line.starts_with("managed ")) {
        pages[node].second += parse_number(line.substr(8)).value_or(0);
      }
    }
    for (NumaMemory& numa : *node_.mutable_numa()) {
      std::uint64_t low = 0, managed = 0;
      for (const auto& [id, counts] : pages) {
        if (!node_.undivided() && id != numa.id()) continue;
        low += counts.first;
        managed += counts.second;
      }
      if (managed > 0 && numa.total() > 0) {
        numa.set_watermark(std::min(low * std::bit_floor(numa.total() / managed + 64), numa.total()));
      }
    }
  }

  const fs::path root_;
  NodeMemory node_;
  std::uint64_t huge_page_ = 0;  // bytes, of the default size
};

// The first word behind a name at the begin of a line.
std::string field(const std::string& text, const std::string& name) {
  const std::size_t at = text.starts_with(name) ? 0 : text.find("\n" + name);
  if (at == std::string::npos) return "";
  const std::size_t begin = text.find_first_not_of(" \t", at + name.size() + (at == 0 ? 0 : 1));
  if (begin == std::string::npos) return "";
  return text.substr(begin, std::min(text.find_first_of(" \t\n", begin), text.size()) - begin);
}

// One line of proc/self/status.
std::optional<std::vector<NumberRange>> allowed(const std::string& status, const std::string& name) {
  const std::size_t at = status.find("\n" + name + ":");
  if (at == std::string::npos) return std::nullopt;
  const std::size_t begin = at + name.size() + 2;
  return parse_number_list(std::string_view(status).substr(begin, status.find('\n', begin) - begin));
}

}  // namespace

NodeMemory read_node_memory(const fs::path& root, const std::string& name) { return Reader(root, name).read(); }

void add_memory_holders(const fs::path& root, NodeMemory& node) {
  constexpr std::uint64_t least = std::uint64_t{256} << 20;
  constexpr std::size_t most = 3;
  std::vector<MemoryHolder> holders;
  std::error_code none;
  for (fs::directory_iterator entry(root / "proc", none), end; !none && entry != end; entry.increment(none)) {
    const auto process = parse_number(entry->path().filename().string());
    if (!process || *process > UINT32_MAX) continue;
    const std::string text = read_file(entry->path() / "status").value_or("");
    const KernelTable status = parse_kernel_table(text);
    const std::uint64_t bytes = value(status, "RssAnon") + value(status, "RssShmem");
    if (bytes < least) continue;
    MemoryHolder holder;
    holder.set_process(static_cast<std::uint32_t>(*process));
    holder.set_name(field(text, "Name:"));
    holder.set_user(static_cast<std::uint32_t>(parse_number(field(text, "Uid:")).value_or(0)));
    holder.set_bytes(bytes);
    holders.push_back(std::move(holder));
  }
  std::ranges::sort(holders, [](const MemoryHolder& a, const MemoryHolder& b) {
    return a.bytes() != b.bytes() ? a.bytes() > b.bytes() : a.process() < b.process();
  });
  for (std::size_t i = 0; i < std::min(most, holders.size()); ++i) *node.add_holder() = holders[i];
}

std::vector<std::uint32_t> read_own_numa_nodes(const fs::path& root, const NodeMemory& node) {
  const std::string status = read_file(root / "proc/self/status").value_or("");
  const auto cpus = allowed(status, "Cpus_allowed_list"), mems = allowed(status, "Mems_allowed_list");
  std::vector<std::uint32_t> near, usable;
  for (const NumaMemory& numa : node.numa()) {
    const bool has_cpus = !numa.cpus().empty(), has_memory = numa.read() && numa.total() > 0;
    const bool may = !mems || node.undivided() || contains_number(*mems, numa.id());
    if (!has_cpus || !has_memory || !may) continue;
    usable.push_back(numa.id());
    const auto of_node = parse_number_list(numa.cpus());
    if (cpus && of_node && have_common_number(*cpus, *of_node)) near.push_back(numa.id());
  }
  return near.empty() ? usable : near;
}

}  // namespace ananke
