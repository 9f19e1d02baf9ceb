#include <fmt/ranges.h>

#include "launcher/trace_summary.h"
#include "runtime/base/text_table.h"
#include "runtime/base/units.h"

namespace ananke {
namespace {

std::string ms(std::int64_t ns) { return fmt::format("{:.3f}", static_cast<double>(ns) / 1e6); }

std::string share(std::int64_t part, std::int64_t whole) {
  return fmt::format("{:.1f}%", whole > 0 ? 100 * static_cast<double>(part) / static_cast<double>(whole) : 0);
}

std::string heading(const TraceRecords& records, const TraceSummary& summary) {
  std::string text = fmt::format("{}: rank {} of {}, step {}: {} ms", records.job, records.rank, records.ranks,
                                 records.step, ms(summary.step));
  if (records.steps.size() > 1) text += fmt::format("; traced: {} (--step)", fmt::join(records.steps, ", "));
  text += '\n';
  for (const std::string& note : records.notes) text += "note: " + note + '\n';
  if (!records.whole) {
    text +=
        "note: the file does not end as it should: its writer was killed, or is still writing; its last step may "
        "lack events\n";
  }
  return text;
}

std::string streams_text(const TraceSummary& summary) {
  std::vector<std::vector<std::string>> rows = {
      {"stream", "busy ms", "of step", "gaps", "ms", "of step", "largest", "exposed ms"}};
  for (const StreamSummary& stream : summary.streams) {
    const bool compute = &stream == &summary.streams.front();
    rows.push_back({stream.name, ms(stream.busy), share(stream.busy, summary.step), std::to_string(stream.gaps),
                    ms(stream.idle), share(stream.idle, summary.step), ms(stream.largest),
                    compute ? "-" : ms(stream.exposed)});
  }
  return text_table(rows) +
         fmt::format(
             "  compute stands still for {} ms: {} ms ({}) while another stream works, {} ms ({}) while none "
             "does (launch gaps)\n",
             ms(summary.streams.front().idle), ms(summary.exposed), share(summary.exposed, summary.step),
             ms(summary.launch_gaps), share(summary.launch_gaps, summary.step));
}

std::string work_text(const char* title, const std::vector<WorkSummary>& work, std::int64_t step, std::size_t top) {
  std::vector<std::vector<std::string>> rows = {{title, "stream", "calls", "total ms", "of step", "mean us"}};
  for (std::size_t i = 0; i < std::min(top, work.size()); ++i) {
    const WorkSummary& one = work[i];
    rows.push_back({one.name, one.stream, std::to_string(one.calls), ms(one.total), share(one.total, step),
                    fmt::format("{:.1f}", static_cast<double>(one.total) / 1e3 / static_cast<double>(one.calls))});
  }
  std::string text = "\n" + text_table(rows);
  if (work.size() > top) text += fmt::format("  ... and {} more (--top)\n", work.size() - top);
  return text;
}

}  // namespace

std::string trace_text(const TraceRecords& records, std::size_t top) {
  const TraceSummary summary = summarise(records);
  std::string text = heading(records, summary);
  const bool any = !summary.work.empty();
  if (!any) return text + "no stream has anything on record\n";
  text += "\n" + streams_text(summary);
  if (top == 0) return text;
  text += work_text("operator, collective or copy", summary.work, summary.step, top);
  if (!summary.kernels.empty()) text += work_text("kernel", summary.kernels, summary.step, top);
  return text;
}

}  // namespace ananke
