#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <array>

#include "runtime/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/base/units.h"
#include "runtime/health/findings.h"
#include "runtime/health/report.h"

namespace ananke {
namespace {

std::string name_of(HealthVerdict verdict) { return HealthVerdict_Name(verdict); }

int count_of(const NodeHealth& node, HealthVerdict verdict) {
  return static_cast<int>(std::ranges::count(node.check(), verdict, &CheckResult::verdict));
}

std::string check_lines(const NodeHealth& node) {
  std::size_t width = 4;
  for (const CheckResult& check : node.check()) width = std::max(width, check.id().size());
  std::string text;
  for (const CheckResult& check : node.check()) {
    text += fmt::format("  {:<{}}  {:<7}  {}\n", check.id(), width, name_of(check.verdict()), check.reason());
    if (is_bad(check.verdict()) && !check.advice().empty()) {
      text += fmt::format("  {:<{}}  {:<7}  {}\n", "", width, "", check.advice());
    }
  }
  return text;
}

std::string counts_text(const HealthReport& report) {
  std::array<int, 5> counts{};
  for (const NodeHealth& node : report.node()) ++counts[static_cast<std::size_t>(node.verdict())];
  std::string text;
  for (const HealthVerdict verdict : {FAIL, UNKNOWN, WARN, PASS}) {
    const int count = counts[static_cast<std::size_t>(verdict)];
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, name_of(verdict));
  }
  return text;
}

std::string label(const std::string& value) {
  std::string text;
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    text += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return text;
}

// For alerts: the larger the worse.
int number_of(HealthVerdict verdict) { return badness(verdict); }

}  // namespace

std::string node_summary(const NodeHealth& node) {
  std::string text;
  for (const HealthVerdict verdict : {FAIL, UNKNOWN, WARN}) {
    for (const CheckResult& check : node.check()) {
      if (check.verdict() != verdict) continue;
      text += fmt::format("{}{}{}: {}", text.empty() ? "" : " | ",
                          verdict == node.verdict() ? "" : name_of(verdict) + " ", check.id(), check.reason());
    }
  }
  if (!text.empty()) return text;
  return fmt::format("{} checks passed, {} do not apply", count_of(node, PASS), count_of(node, SKIPPED));
}

std::string report_text(const HealthReport& report, bool drains) {
  std::size_t width = 4;
  for (const NodeHealth& node : report.node()) width = std::max(width, node.node().size());
  std::string text;
  for (const NodeHealth& node : report.node()) {
    text += fmt::format("{:<{}}  {:<7}  {}\n", node.node(), width, name_of(node.verdict()), node_summary(node));
    if (report.node_size() == 1) text += check_lines(node);
  }
  text +=
      fmt::format("verdict {}: {}, level {}, site {}{}{}\n", name_of(report.verdict()), counts_text(report),
                  HealthLevel_Name(report.level()), report.site(), report.job().empty() ? "" : ", job " + report.job(),
                  report.has_seconds() ? ", " + format_duration(report.seconds()) : "");
  for (const std::string& note : report.note()) text += "note: " + note + "\n";
  if (!report.exclude().empty()) text += "--exclude=" + report.exclude() + "\n";
  if (!report.drain_command().empty()) {
    text += drains ? "draining nodes with a defect:\n" : "to drain nodes with a defect (not executed):\n";
  }
  for (const std::string& command : report.drain_command()) text += "  " + command + "\n";
  for (const NodeHealth& node : report.node()) {
    if (node.ticket().empty()) continue;
    text += "for the site's support:\n" + node.ticket();
    break;
  }
  return printable(text);  // processes, files and nodes are called as anybody likes
}

std::string report_json(const HealthReport& report) {
  std::string text;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = false;
  if (!google::protobuf::util::MessageToJsonString(report, &text, options).ok()) {
    fail(ErrorKind::internal, "the report cannot be written as JSON");
  }
  return text + "\n";
}

std::string report_prometheus(const HealthReport& report) {
  std::string text =
      "# HELP ananke_health_verdict Of a node: 0 skipped, 1 pass, 2 warn, 3 unknown, 4 fail.\n"
      "# TYPE ananke_health_verdict gauge\n";
  for (const NodeHealth& node : report.node()) {
    text += fmt::format("ananke_health_verdict{{node=\"{}\"}} {}\n", label(node.node()), number_of(node.verdict()));
  }
  text += "# HELP ananke_health_check Of one check, likewise.\n# TYPE ananke_health_check gauge\n";
  for (const NodeHealth& node : report.node()) {
    for (const CheckResult& check : node.check()) {
      text += fmt::format("ananke_health_check{{node=\"{}\",check=\"{}\"}} {}\n", label(node.node()), label(check.id()),
                          number_of(check.verdict()));
    }
  }
  text += "# HELP ananke_health_value What checks measured.\n# TYPE ananke_health_value gauge\n";
  for (const NodeHealth& node : report.node()) {
    for (const CheckResult& check : node.check()) {
      for (const HealthValue& value : check.value()) {
        if (!value.has_number()) continue;
        text +=
            fmt::format("ananke_health_value{{node=\"{}\",check=\"{}\",name=\"{}\",entity=\"{}\",unit=\"{}\"}} {}\n",
                        label(node.node()), label(check.id()), label(value.name()), label(value.entity()),
                        label(value.unit()), value.number());
      }
    }
  }
  return text;
}

}  // namespace ananke
