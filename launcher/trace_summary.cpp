#include "launcher/trace_summary.h"

#include <algorithm>
#include <map>
#include <utility>

#include "runtime/device/stream.h"
#include "runtime/telemetry/trace.h"

namespace ananke {
namespace {

using Interval = std::pair<std::int64_t, std::int64_t>;
using Intervals = std::vector<Interval>;  // ascending, none touches another

Intervals merged(Intervals all) {
  std::ranges::sort(all);
  Intervals result;
  for (const Interval& one : all) {
    if (one.first >= one.second) continue;
    if (result.empty() || one.first > result.back().second) {
      result.push_back(one);
    } else {
      result.back().second = std::max(result.back().second, one.second);
    }
  }
  return result;
}

// What of [begin, end) is in none.
Intervals outside(const Intervals& intervals, std::int64_t begin, std::int64_t end) {
  Intervals result;
  for (const Interval& one : intervals) {
    if (one.first > begin) result.emplace_back(begin, std::min(one.first, end));
    begin = std::max(begin, one.second);
  }
  if (begin < end) result.emplace_back(begin, end);
  return result;
}

std::int64_t length(const Intervals& intervals) {
  std::int64_t sum = 0;
  for (const Interval& one : intervals) sum += one.second - one.first;
  return sum;
}

std::int64_t common_length(const Intervals& a, const Intervals& b) {
  std::int64_t sum = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    sum += std::max<std::int64_t>(0, std::min(a[i].second, b[j].second) - std::max(a[i].first, b[j].first));
    a[i].second < b[j].second ? ++i : ++j;
  }
  return sum;
}

// Streams beside compute, "compute side 1", that single operators use, count as compute.
int place_of(const std::string& stream) {
  if (stream.starts_with(name_of(Resource::compute))) return 0;
  for (int i = 0; i < resource_count; ++i) {
    if (stream == name_of(static_cast<Resource>(i))) return i;
  }
  return resource_count;
}

bool is_work(const TraceEvent& event) { return event.stream != "host" && event.kind != name_of(TraceKind::wait); }

using ByName = std::map<std::pair<std::string, std::string>, WorkSummary>;  // by stream and name

std::vector<WorkSummary> most_first(const ByName& by_name) {
  std::vector<WorkSummary> all;
  for (const auto& [key, work] : by_name) all.push_back(work);
  std::ranges::stable_sort(all, std::ranges::greater(), &WorkSummary::total);
  return all;
}

void add(const std::string& stream, const std::string& name, std::int64_t time, ByName* by_name) {
  WorkSummary& work = (*by_name)[{stream, name}];
  work.stream = stream;
  work.name = name;
  ++work.calls;
  work.total += time;
}

}  // namespace

TraceSummary summarise(const TraceRecords& records) {
  const std::int64_t begin = records.begin, end = records.end;
  std::map<std::pair<int, std::string>, Intervals> streams;
  ByName by_work, by_kernel;
  Intervals others;
  for (const TraceEvent& event : records.events) {
    if (!is_work(event)) continue;
    const Interval within = {std::max(event.begin, begin), std::min(event.end, end)};
    if (within.first > within.second) continue;  // behind the step: its evaluation, its checkpoint
    const int place = place_of(event.stream);
    const std::string stream = place == 0 ? name_of(Resource::compute) : event.stream;
    const std::int64_t time = within.second - within.first;
    streams[{place, stream}].push_back(within);
    if (place != 0) others.push_back(within);
    add(stream, event.launcher.empty() ? event.name : event.launcher, time, &by_work);
    const bool of_device = event.kind == name_of(TraceKind::kernel) || !event.launcher.empty();
    if (of_device) add(stream, event.name, time, &by_kernel);
  }
  TraceSummary summary;
  summary.step = end - begin;
  const Intervals idle_compute = outside(merged(streams[{0, name_of(Resource::compute)}]), begin, end);
  for (auto& [key, pieces] : streams) {
    const Intervals busy = merged(pieces), gaps = outside(busy, begin, end);
    StreamSummary& stream = summary.streams.emplace_back(StreamSummary{key.second, length(busy), gaps.size()});
    stream.idle = length(gaps);
    for (const Interval& gap : gaps) stream.largest = std::max(stream.largest, gap.second - gap.first);
    stream.exposed = key.first == 0 ? 0 : common_length(busy, idle_compute);
  }
  summary.exposed = common_length(merged(others), idle_compute);
  summary.launch_gaps = length(idle_compute) - summary.exposed;
  summary.work = most_first(by_work);
  summary.kernels = most_first(by_kernel);
  return summary;
}

}  // namespace ananke
