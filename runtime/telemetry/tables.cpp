#include "runtime/telemetry/tables.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "ananke/memory.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/text_table.h"
#include "runtime/base/units.h"
#include "runtime/model/parameter_table.h"

namespace ananke {
namespace {

// "model.layers.3.mlp.experts.7.up_proj.weight" → "model.layers.*.mlp.experts.*.up_proj.weight"
std::string folded(const std::string& name) {
  std::string result;
  for (std::size_t i = 0; i < name.size();) {
    std::size_t end = std::min(name.find('.', i), name.size());
    const bool digits = end > i && std::all_of(name.begin() + static_cast<std::ptrdiff_t>(i),
                                               name.begin() + static_cast<std::ptrdiff_t>(end),
                                               [](unsigned char c) { return std::isdigit(c); });
    result += digits ? "*" : name.substr(i, end - i);
    if (end < name.size()) result += '.';
    i = end + 1;
  }
  return result;
}

}  // namespace

std::string parameter_table_text(const ParameterTable& table, std::int64_t context) {
  struct Group {
    std::string name;
    Shape shape;
    std::int64_t tensors = 0;
  };
  std::vector<Group> groups;  // in the model's order
  std::map<std::string, std::size_t> places;
  for (const Parameter& parameter : table.parameters()) {
    const std::string name = folded(parameter.name);
    const auto [place, is_new] = places.try_emplace(name + to_string(parameter.shape), groups.size());
    if (is_new) groups.push_back({name, parameter.shape});
    ++groups[place->second].tensors;
  }
  std::vector<std::vector<std::string>> rows = {{"parameter", "shape", "tensors", "elements"}};
  for (const Group& group : groups) {
    rows.push_back({group.name, to_string(group.shape), std::to_string(group.tensors),
                    format_count(static_cast<double>(group.tensors * group.shape.elements()))});
  }
  return text_table(rows, 0) +
         fmt::format(
             "{} parameters, {} active per token; {} FLOPs per token forward and backward, rows of {} "
             "tokens; attention costs as much as the rest in documents of {:.0f}\n",
             format_count(static_cast<double>(table.total())), format_count(static_cast<double>(table.active())),
             format_count(table.flops_per_token(context)), context,
             table.flops_per_token(0) / (table.flops_per_token(1) - table.flops_per_token(0)));
}

std::string memory_plan_text(std::span<const PlanLine> lines) {
  std::map<std::pair<Place, std::string>, std::uint64_t> sums;
  std::map<Place, std::uint64_t> totals;
  for (const PlanLine& line : lines) {
    const bool passes = line.lifetime == Lifetime::start;
    sums[{line.place, passes ? line.purpose + ", at the start only" : line.purpose}] += line.bytes;
    if (!passes) totals[line.place] += line.bytes;
  }
  std::vector<std::pair<std::pair<Place, std::string>, std::uint64_t>> sorted(sums.begin(), sums.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  const auto place_name = [](Place place) { return place == Place::device ? "device" : "host"; };
  std::vector<std::vector<std::string>> rows = {{"memory of one rank", "place", "planned"}};
  for (const auto& [key, bytes] : sorted) rows.push_back({key.second, place_name(key.first), format_bytes(bytes)});
  for (const auto& [place, bytes] : totals) rows.push_back({"sum", place_name(place), format_bytes(bytes)});
  return text_table(rows, 0);
}

std::string memory_report_text(const MemoryReport& report) {
  const bool measured = report.has_device_measured();
  std::vector<std::vector<std::string>> rows = {{fmt::format("memory of rank {}", report.rank()), "place", "planned"}};
  if (measured) rows[0].insert(rows[0].end(), {"measured", "of plan"});
  const auto add = [&](const std::string& what, const std::string& place, std::uint64_t planned, bool known,
                       std::uint64_t bytes) {
    std::vector<std::string>& row = rows.emplace_back(std::vector<std::string>{what, place, format_bytes(planned)});
    if (!measured) return;
    row.push_back(known ? format_bytes(bytes) : "?");
    const double ratio = static_cast<double>(bytes) / static_cast<double>(planned);
    row.push_back(known && planned > 0 ? fmt::format("{:.1f}%", 100 * ratio) : "");
  };
  for (const MemoryLine& line : report.line()) {
    const bool passes = line.lifetime() == lifetime_name(Lifetime::start);
    add(passes ? line.purpose() + ", at the start only" : line.purpose(), line.place(), line.planned(),
        line.has_measured(), line.measured());
  }
  add("sum", "device", report.device_planned(), true, report.device_measured());
  add("sum", "host", report.host_planned(), true, report.host_measured());
  return text_table(rows, 0);
}

const char* lifetime_name(Lifetime lifetime) {
  switch (lifetime) {
    case Lifetime::run: return "run";
    case Lifetime::use: return "use";
    case Lifetime::start: return "start";
  }
  return "";
}

std::string ledger_text(const std::string& name, std::span<const Arena::Line> lines, std::uint64_t peak) {
  std::vector<std::vector<std::string>> rows = {{name, "pieces", "in use"}};
  std::uint64_t sum = 0, pieces = 0;
  for (const Arena::Line& line : lines) {
    rows.push_back({line.purpose, std::to_string(line.allocations), format_bytes(line.bytes)});
    sum += line.bytes;
    pieces += line.allocations;
  }
  rows.push_back({"sum", std::to_string(pieces), format_bytes(sum)});
  rows.push_back({"peak", "", format_bytes(peak)});
  return text_table(rows, 0);
}

}  // namespace ananke
