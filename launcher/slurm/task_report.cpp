#include "launcher/slurm/task_report.h"

#include <fmt/format.h>

#include <charconv>

namespace ananke {
namespace {

constexpr std::string_view mark = "ananke-task ";

// The value of "name=value" among words; empty where there is none.
std::string_view value_of(std::string_view words, std::string_view name) {
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find(' '));
    if (word.size() > name.size() && word.starts_with(name) && word[name.size()] == '=') {
      return word.substr(name.size() + 1);
    }
    words.remove_prefix(std::min(words.size(), word.size() + 1));
  }
  return {};
}

bool read_number(std::string_view words, std::string_view name, int& value) {
  const std::string_view text = value_of(words, name);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return !text.empty() && error == std::errc() && end == text.data() + text.size() && value >= 0;
}

}  // namespace

std::string to_line(const TaskReport& report) {
  std::string line =
      fmt::format("{}rank={} process={} host={} step={}", mark, report.rank, report.process, report.host, report.step);
  if (report.end) {
    line += fmt::format(" code={} signal={} core={} oom={}", report.end->code, report.end->signal,
                        report.end->core_dumped ? 1 : 0, report.out_of_memory ? 1 : 0);
  }
  return line;
}

std::optional<TaskReport> parse_report(std::string_view line) {
  if (!line.starts_with(mark)) return std::nullopt;
  line.remove_prefix(mark.size());
  TaskReport report;
  if (!read_number(line, "rank", report.rank) || !read_number(line, "process", report.process)) return std::nullopt;
  report.host = value_of(line, "host");
  report.step = value_of(line, "step");
  if (value_of(line, "code").empty()) return report;
  ExitStatus end;
  int core = 0, oom = 0;
  if (!read_number(line, "code", end.code) || !read_number(line, "signal", end.signal) ||
      !read_number(line, "core", core) || !read_number(line, "oom", oom)) {
    return std::nullopt;
  }
  end.core_dumped = core != 0;
  report.end = end;
  report.out_of_memory = oom != 0;
  return report;
}

}  // namespace ananke
