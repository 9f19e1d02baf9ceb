#include "runtime/engine/memory_report.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "runtime/base/error.h"
#include "runtime/engine/trainer.h"
#include "runtime/telemetry/tables.h"

namespace ananke {
namespace {

const char* name_of(Place place) { return place == Place::device ? "device" : "host"; }

void add_up(MemoryReport& report) {
  std::uint64_t planned[2] = {}, measured[2] = {};
  for (const MemoryLine& line : report.line()) {
    if (line.lifetime() == lifetime_name(Lifetime::start)) continue;
    const int place = line.place() == name_of(Place::host) ? 1 : 0;
    planned[place] += line.planned();
    measured[place] += line.measured();
  }
  report.set_device_planned(planned[0]);
  report.set_host_planned(planned[1]);
  if (!report.has_device_measured()) return;
  report.set_device_measured(measured[0]);
  report.set_host_measured(measured[1]);
}

// The first line of a purpose takes it.
void set_measured(MemoryReport& report, const std::string& purpose, Place otherwise, std::uint64_t bytes) {
  for (MemoryLine& line : *report.mutable_line()) {
    if (line.purpose() == purpose) return line.set_measured(bytes);
  }
  MemoryLine& line = *report.add_line();
  line.set_purpose(purpose);
  line.set_place(name_of(otherwise));
  line.set_lifetime(lifetime_name(Lifetime::run));
  line.set_planned(0);
  line.set_measured(bytes);
}

std::uint64_t taken(const MemoryReport& report) { return report.device_measured() + report.host_measured(); }

}  // namespace

std::vector<PlanLine> whole_plan(const Trainer& trainer) {
  std::vector<PlanLine> lines = trainer.plan();
  for (PlanLine& line : trainer.other_plan()) lines.push_back(std::move(line));
  return lines;
}

MemoryReport memory_report(int rank, int ranks, const std::vector<PlanLine>& lines) {
  std::map<std::tuple<std::string, Place, Lifetime>, std::uint64_t> sums;
  for (const PlanLine& line : lines) sums[{line.purpose, line.place, line.lifetime}] += line.bytes;
  MemoryReport report;
  report.set_rank(static_cast<std::uint32_t>(rank));
  report.set_ranks(static_cast<std::uint32_t>(ranks));
  for (const auto& [key, bytes] : sums) {
    if (bytes == 0) continue;
    MemoryLine& line = *report.add_line();
    line.set_purpose(std::get<0>(key));
    line.set_place(name_of(std::get<1>(key)));
    line.set_lifetime(lifetime_name(std::get<2>(key)));
    line.set_planned(bytes);
  }
  std::ranges::stable_sort(*report.mutable_line(),
                           [](const MemoryLine& a, const MemoryLine& b) { return a.planned() > b.planned(); });
  add_up(report);
  return report;
}

MemoryReport measured_report(Trainer& trainer) {
  const RoleContext& context = trainer.engine().context();
  MemoryReport report = memory_report(context.rank, context.mesh.ranks(), whole_plan(trainer));
  report.set_device_measured(0);
  Device& device = trainer.engine().device();
  for (Arena* arena : std::set<Arena*>{&device.memory(), &device.host_memory()}) {
    const Place place = arena == &device.memory() ? Place::device : Place::host;
    for (const Arena::Line& line : arena->history()) set_measured(report, line.purpose, place, line.peak);
  }
  std::map<std::pair<std::string, Place>, std::uint64_t> own;
  for (const PlanLine& line : trainer.engine().backend().in_use()) own[{line.purpose, line.place}] += line.bytes;
  for (const auto& [key, bytes] : own) set_measured(report, key.first, key.second, bytes);
  add_up(report);
  return report;
}

std::optional<MemoryReport> largest_report(Rendezvous& rendezvous, const MemoryReport& mine) {
  const std::vector<std::string> all = rendezvous.exchange_after_work("memory taken", {}, std::to_string(taken(mine)));
  const auto bytes = [](const std::string& text) { return std::stoull(text); };
  const auto largest = std::ranges::max_element(all, {}, bytes);
  const int rank = static_cast<int>(largest - all.begin());
  if (rank == 0) return rendezvous.rank() == 0 ? std::optional(mine) : std::nullopt;
  if (rendezvous.rank() != 0 && rendezvous.rank() != rank) return std::nullopt;
  const std::vector<int> members = {0, rank};
  const std::vector<std::string> two =
      rendezvous.exchange("memory of the rank that took most", members, mine.SerializeAsString());
  if (rendezvous.rank() != 0) return std::nullopt;
  MemoryReport report;
  if (!report.ParseFromString(two.at(1))) fail(ErrorKind::internal, "rank {} sends no report of its memory", rank);
  return report;
}

}  // namespace ananke
