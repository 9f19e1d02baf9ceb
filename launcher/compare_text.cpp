#include "launcher/compare_text.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/text_table.h"
#include "runtime/base/units.h"

namespace ananke {
namespace {

constexpr std::size_t shown_steps = 12;       // of a loss curve
constexpr std::size_t shown_evaluations = 5;  // of a set
constexpr const char* none = "-";

// Words to lines of at most `width`, the first indented by `first` blanks, the others by two.
std::string wrapped(const std::string& text, std::size_t width, std::size_t first = 0) {
  std::string result, line(first, ' ');
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    const bool begins = begin == 0;
    if (!begins && line.size() + 1 + word.size() > width) {
      result += line + '\n';
      line = "  " + word;
    } else {
      line += (begins ? "" : " ") + word;
    }
    begin = end + 1;
  }
  return result + line + '\n';
}

std::string loss_text(bool has, double loss) { return has ? fmt::format("{:.4f}", loss) : none; }

// Enough digits to see how small it is.
std::string difference_text(double difference) {
  if (difference == 0) return "0";
  return std::abs(difference) < 1e-3 ? fmt::format("{:+.1e}", difference) : fmt::format("{:+.4f}", difference);
}

std::string summary_line(const char* name, const RunSummary& run, std::size_t width) {
  std::string text = fmt::format("{}  {}: {}", name, run.run_dir(), run.state());
  if (run.has_last_step()) text += fmt::format(" at step {}", run.last_step());
  if (run.has_steps()) text += fmt::format("{} of {}", run.has_last_step() ? "" : ", 0", run.steps());
  if (run.has_job()) text += ", job " + run.job();
  if (run.has_ranks()) text += fmt::format(", {} rank{}", run.ranks(), run.ranks() == 1 ? "" : "s");
  if (run.has_parameters()) text += fmt::format(", {} parameters", format_count(static_cast<double>(run.parameters())));
  if (run.has_total_valid_tokens()) {
    text += fmt::format(", {} tokens", format_count(static_cast<double>(run.total_valid_tokens())));
  }
  return wrapped(text, width);
}

// Short values side by side, long ones below their path: nothing is cut.
std::string configuration_text(const RunComparison& comparison, std::size_t width) {
  if (!comparison.has_configuration_fields()) return "";
  if (comparison.configuration().empty()) {
    return fmt::format("\nconfiguration: all {} fields are equal\n", comparison.configuration_fields());
  }
  std::string text = fmt::format("\nconfiguration: {} of {} fields differ\n", comparison.configuration_size(),
                                 comparison.configuration_fields());
  const std::size_t widest_path = std::min<std::size_t>(44, width / 2);
  const std::size_t widest_value = width > widest_path + 6 ? (width - widest_path - 6) / 2 : 0;
  std::vector<std::vector<std::string>> rows = {{"", "A", "B"}};
  std::string long_ones;
  for (const ConfigurationDifference& one : comparison.configuration()) {
    const std::string a = one.has_a() ? one.a() : "absent", b = one.has_b() ? one.b() : "absent";
    if (one.path().size() <= widest_path && std::max(a.size(), b.size()) <= widest_value) {
      rows.push_back({one.path(), a, b});
    } else {
      long_ones += fmt::format("  {}\n    A  {}\n    B  {}\n", one.path(), a, b);
    }
  }
  return text + (rows.size() > 1 ? text_table(rows) : "") + long_ones;
}

// `wanted` places out of `size`, evenly, both ends among them.
std::set<int> spread(int size, std::size_t wanted) {
  std::set<int> places;
  for (std::size_t i = 0; i < wanted && size > 0; ++i) {
    places.insert(static_cast<int>((static_cast<std::uint64_t>(size) - 1) * i / (wanted - 1)));
  }
  return places;
}

std::string loss_verdict(const RunComparison& comparison) {
  if (comparison.common_steps() == 0) return "the runs have no step in common";
  if (!comparison.has_first_difference()) {
    return fmt::format("all {} common steps are equal to the last bit", comparison.common_steps());
  }
  const LossDifference &first = comparison.first_difference(), &largest = comparison.largest_difference(),
                       &final = comparison.final_difference();
  return fmt::format(
      "{} of {} common steps are equal to the last bit; the first that is not is step {} ({}); largest difference {} "
      "at step {}; at the last common step, {}: {}",
      comparison.equal_steps(), comparison.common_steps(), first.step(), difference_text(first.value()),
      difference_text(largest.value()), largest.step(), final.step(), difference_text(final.value()));
}

std::string loss_curves_text(const RunComparison& comparison, std::size_t width) {
  const int size = comparison.loss_size();
  if (size == 0) return "\nloss: no run has a step on record\n";
  std::set<int> places = spread(size, shown_steps);
  for (int i = size - 1; i >= 0; --i) {  // the last of each run, the last in common
    if (comparison.loss(i).step() == comparison.a().last_step()) places.insert(i);
    if (comparison.loss(i).step() == comparison.b().last_step()) places.insert(i);
    if (comparison.loss(i).step() == comparison.final_difference().step()) places.insert(i);
  }
  const std::size_t step_width = std::max<std::size_t>(4, std::to_string(comparison.loss(size - 1).step()).size());
  std::vector<std::vector<std::string>> rows = {{"step", "A", "B", "B - A"}};
  for (const int i : places) {
    const LossPoint& point = comparison.loss(i);
    const bool both = point.has_a() && point.has_b();
    rows.push_back({fmt::format("{:>{}}", point.step(), step_width), loss_text(point.has_a(), point.a()),
                    loss_text(point.has_b(), point.b()), both ? difference_text(point.b() - point.a()) : none});
  }
  return "\nloss, nats per token\n" + text_table(rows) + wrapped(loss_verdict(comparison), width, 2);
}

// Of one set: evaluations [begin, end).
void add_evaluations(const RunComparison& comparison, int begin, int end, std::vector<std::vector<std::string>>* rows) {
  for (const int i : spread(end - begin, shown_evaluations)) {
    const EvaluationPoint& point = comparison.evaluations(begin + i);
    const bool both = point.has_a() && point.has_b();
    rows->push_back({point.held_out().empty() ? "held out" : point.held_out(), std::to_string(point.step()),
                     loss_text(point.has_a(), point.a()), loss_text(point.has_b(), point.b()),
                     both ? difference_text(point.b() - point.a()) : none,
                     loss_text(point.has_a_bits_per_byte(), point.a_bits_per_byte()),
                     loss_text(point.has_b_bits_per_byte(), point.b_bits_per_byte())});
  }
}

std::string evaluations_text(const RunComparison& comparison) {
  const auto& points = comparison.evaluations();
  if (points.empty()) return "";
  std::vector<std::vector<std::string>> rows = {{"set", "step", "A", "B", "B - A", "A bits/byte", "B bits/byte"}};
  for (int begin = 0, end = 0; begin < points.size(); begin = end) {
    while (end < points.size() && points[end].held_out() == points[begin].held_out()) ++end;
    add_evaluations(comparison, begin, end, &rows);
  }
  const bool bytes = std::ranges::any_of(
      points, [](const auto& one) { return one.has_a_bits_per_byte() || one.has_b_bits_per_byte(); });
  if (!bytes) {
    for (auto& row : rows) row.resize(5);
  }
  return "\nevaluation, nats per token\n" + text_table(rows);
}

std::string ratio_text(double a, double b) { return a > 0 && b > 0 ? fmt::format("{:.3f}", b / a) : none; }

std::string resource_title(const std::string& name) {
  return name == "memory" ? "memory peak, largest rank" : name + ", a step";
}

std::vector<std::string> resource_names(const RunSummary& a, const RunSummary& b) {
  std::vector<std::string> names;
  for (const RunSummary* run : {&a, &b}) {
    for (const ResourceUse& use : run->resources()) {
      if (std::ranges::find(names, use.name()) == names.end()) names.push_back(use.name());
    }
  }
  return names;
}

double bytes_of(const RunSummary& run, const std::string& name) {
  for (const ResourceUse& use : run.resources()) {
    if (use.name() == name) return static_cast<double>(use.bytes());
  }
  return 0;
}

std::string costs_text(const RunComparison& comparison, std::size_t width) {
  const RunSummary &a = comparison.a(), &b = comparison.b();
  if (!a.has_measured_steps() && !b.has_measured_steps()) return "";
  std::vector<std::vector<std::string>> rows = {{"", "A", "B", "B / A"}};
  const auto row = [&](const std::string& title, double of_a, double of_b, auto format) {
    rows.push_back({title, a.has_measured_steps() ? format(of_a) : none, b.has_measured_steps() ? format(of_b) : none,
                    ratio_text(of_a, of_b)});
  };
  row("tokens/s, median", a.tokens_per_second(), b.tokens_per_second(), format_count);
  row("time of a step, median", a.seconds_per_step(), b.seconds_per_step(), format_duration);
  const auto bytes = [](double value) { return format_bytes(static_cast<std::uint64_t>(value)); };
  for (const std::string& name : resource_names(a, b)) {
    row(resource_title(name), bytes_of(a, name), bytes_of(b, name), bytes);
  }
  const std::string footnote = fmt::format(
      "bytes are those that rank 0 received; medians of {} steps of A and {} of B: the first 5 after every start are "
      "left out, or half of fewer "
      "than 10",
      a.measured_steps(), b.measured_steps());
  return "\nspeed, memory, bytes\n" + text_table(rows) + wrapped(footnote, width, 2);
}

}  // namespace

std::string comparison_text(const RunComparison& comparison, std::size_t width) {
  std::string text = summary_line("A", comparison.a(), width) + summary_line("B", comparison.b(), width);
  for (const std::string& note : comparison.notes()) text += wrapped("note: " + note, width);
  return text + configuration_text(comparison, width) + loss_curves_text(comparison, width) +
         evaluations_text(comparison) + costs_text(comparison, width);
}

}  // namespace ananke
