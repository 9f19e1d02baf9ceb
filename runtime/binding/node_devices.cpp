#include "runtime/binding/node_devices.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "runtime/base/read_file.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& file) {
  const auto text = read_file(file);
  return text ? text->substr(0, text->find('\n')) : "";
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code none;
  for (fs::directory_iterator entry(folder, none), end; !none && entry != end; entry.increment(none)) {
    entries.push_back(entry->path());
  }
  std::ranges::sort(entries);
  return entries;
}

int number_or(const std::string& text, int otherwise) {
  int value = otherwise;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : otherwise;
}

// Of a link such as sys/bus/pci/devices/0000:41:00.0.
PciPlace place_of(const fs::path& root, const fs::path& link) {
  std::error_code none;
  const fs::path folder = fs::canonical(link, none), sys = fs::canonical(root / "sys", none);
  if (none) return {};
  return {folder.lexically_relative(sys).string(), number_or(first_line(folder / "numa_node"), -1)};
}

// Folders that both ways have in common, "devices" left out; the devices themselves are not counted.
std::size_t shared_way(const PciPlace& a, const PciPlace& b) {
  const fs::path one(a.path), other(b.path);
  std::size_t common = 0;
  for (auto x = one.begin(), y = other.begin(); x != one.end() && y != other.end() && *x == *y; ++x, ++y) ++common;
  return common == 0 ? 0 : common - 1;
}

}  // namespace

std::vector<NumaCpus> read_numa_cpus(const fs::path& root) {
  std::vector<NumaCpus> nodes;
  for (const fs::path& folder : entries_of(root / "sys/devices/system/node")) {
    const std::string name = folder.filename();
    const int id = name.starts_with("node") ? number_or(name.substr(4), -1) : -1;
    const auto cpus = parse_number_list(first_line(folder / "cpulist"));
    if (id >= 0 && cpus && !cpus->empty()) nodes.push_back({id, *cpus});
  }
  std::ranges::sort(nodes, {}, &NumaCpus::id);
  return nodes;
}

std::vector<Gpu> read_gpus(const fs::path& root) {
  std::vector<Gpu> gpus;
  for (const fs::path& folder : entries_of(root / "proc/driver/nvidia/gpus")) {
    const auto text = read_file(folder / "information");
    if (!text) continue;
    Gpu gpu{.uuid = {}, .bus = folder.filename().string(), .place = {}};
    std::istringstream lines(*text);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("GPU UUID:")) gpu.uuid = line.substr(line.find_last_of(" \t") + 1);
    }
    gpu.place = place_of(root, root / "sys/bus/pci/devices" / gpu.bus);
    if (!gpu.uuid.empty()) gpus.push_back(std::move(gpu));
  }
  return gpus;
}

std::vector<Adapter> read_adapters(const fs::path& root) {
  std::vector<Adapter> adapters;
  for (const fs::path& folder : entries_of(root / "sys/class/infiniband")) {
    Adapter adapter{.name = folder.filename().string(), .place = place_of(root, folder / "device"), .active = false};
    for (const fs::path& port : entries_of(folder / "ports")) {
      adapter.active = adapter.active || first_line(port / "state").ends_with("ACTIVE");
    }
    adapters.push_back(std::move(adapter));
  }
  return adapters;
}

std::vector<Adapter> nearest_adapters(const std::vector<Adapter>& adapters, const PciPlace& device) {
  // The way first: of two on one NUMA node, one may be behind the device's own switch.
  const auto nearness = [&](const Adapter& adapter) {
    const bool same_numa = device.numa >= 0 && adapter.place.numa == device.numa;
    const std::size_t way = device.path.empty() ? 0 : shared_way(adapter.place, device);
    return std::pair(way, same_numa);
  };
  std::pair<std::size_t, bool> best{0, false};
  for (const Adapter& adapter : adapters) best = std::max(best, nearness(adapter));
  std::vector<Adapter> nearest;
  if (best == std::pair<std::size_t, bool>{0, false}) return nearest;
  for (const Adapter& adapter : adapters) {
    if (nearness(adapter) == best) nearest.push_back(adapter);
  }
  return nearest;
}

}  // namespace ananke
