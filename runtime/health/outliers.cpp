#include "runtime/health/outliers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "runtime/health/findings.h"

namespace ananke {
namespace {

constexpr double error_rate = 0.01;     // of accusing anybody, when all are healthy
constexpr double least_spread = 0.005;  // of the median: clocks and counters have steps
constexpr double normal_mad = 1.4826;   // standard deviation of a normal variable / its MAD
constexpr std::size_t fewest_peers = 8, fewest_runs = 5;

// A value of a node with those that it is compared with.
using Key = std::pair<std::string, std::string>;  // check, value
struct Sample {
  int node = 0;
  const HealthValue* value = nullptr;
};

std::map<Key, std::vector<Sample>> samples_of(const HealthReport& report, bool equal) {
  std::map<Key, std::vector<Sample>> samples;
  for (int i = 0; i < report.node_size(); ++i) {
    for (const CheckResult& check : report.node(i).check()) {
      for (const HealthValue& value : check.value()) {
        const bool rate = value.compare() == HealthValue::HIGHER || value.compare() == HealthValue::LOWER;
        if (equal ? value.compare() == HealthValue::EQUAL : rate && value.has_number()) {
          samples[{check.id(), value.name()}].push_back({i, &value});
        }
      }
    }
  }
  return samples;
}

CheckThreshold threshold_of(const std::string& check, const Site& site) {
  CheckThreshold threshold{"percent", "%", false, 15.0, 5.0, "worse than the median"};
  const auto number = [](const std::string& text) {
    return text == "none" ? std::nullopt : std::optional<double>(std::atof(text.c_str()));
  };
  for (const HealthThreshold& one : site.health().threshold()) {
    if (one.check() != check) continue;
    if (!one.fail().empty()) threshold.fail = number(one.fail());
    if (!one.warn().empty()) threshold.warn = number(one.warn());
  }
  return threshold;
}

// Collects what is found of each node.
class Judgements {
 public:
  Judgements(const HealthReport& report, std::string id) : id_(std::move(id)), results_(report.node_size()) {}

  void add(int node, HealthVerdict verdict, const std::string& sentence) {
    CheckResult& result = results_[static_cast<std::size_t>(node)];
    result.set_verdict(result.has_verdict() ? worse(result.verdict(), verdict) : verdict);
    result.set_reason(result.reason() + (result.reason().empty() ? "" : "; ") + sentence);
  }
  // `fine` or `skipped`: of the nodes of which nothing was found.
  void write(HealthReport* report, const std::vector<std::string>& fine, const std::string& skipped) {
    for (int i = 0; i < report->node_size(); ++i) {
      CheckResult& result = results_[static_cast<std::size_t>(i)];
      if (report->node(i).check_size() == 0) continue;
      const std::string& text = fine[static_cast<std::size_t>(i)];
      if (!result.has_verdict()) {
        result.set_verdict(text.empty() ? SKIPPED : PASS);
        result.set_reason(text.empty() ? skipped : text);
      }
      result.set_id(id_);
      *report->mutable_node(i)->add_check() = std::move(result);
    }
  }

 private:
  const std::string id_;
  std::vector<CheckResult> results_;
};

std::string name_of(const Key& key, const HealthValue& value) {
  return fmt::format("{} {}{}", key.first, key.second, value.entity().empty() ? "" : " of " + value.entity());
}

std::string plain(const HealthValue& value) {
  return value.has_text() ? value.text() : text_with_unit(value.number(), value.unit());
}

// The minority is told apart; where no value has more than half of the nodes nobody is.
void judge_equality(const Key& key, const std::vector<Sample>& samples, Judgements& judgements) {
  std::map<std::string, std::size_t> counts;
  for (const Sample& sample : samples) ++counts[plain(*sample.value)];
  if (counts.size() < 2) return;
  const auto most = std::ranges::max_element(counts, {}, [](const auto& one) { return one.second; });
  if (2 * most->second <= samples.size()) return;
  for (const Sample& sample : samples) {
    if (plain(*sample.value) == most->first) continue;
    judgements.add(sample.node, WARN,
                   fmt::format("{} is {}, and {} of {} have {}", name_of(key, *sample.value), plain(*sample.value),
                               most->second, samples.size(), most->first));
  }
}

}  // namespace

double median_of(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const std::size_t half = values.size() / 2;
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(half));
  const double upper = values[half];
  if (values.size() % 2 == 1) return upper;
  return (upper + *std::max_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(half))) / 2;
}

double normal_tail(double p) {
  double low = 0, high = 40;
  for (int i = 0; i < 80; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(middle / std::sqrt(2.0)) > p ? low : high) = middle;
  }
  return (low + high) / 2;
}

std::vector<Outlier> find_outliers(std::span<const double> values, bool low_is_bad, std::size_t tests,
                                   double least_percent) {
  std::vector<Outlier> found;
  if (values.size() < fewest_peers) return found;
  const double median = median_of({values.begin(), values.end()});
  std::vector<double> away;
  for (const double value : values) away.push_back(std::abs(value - median));
  const double spread = std::max(normal_mad * median_of(away), least_spread * std::abs(median));
  if (!(spread > 0)) return found;
  const double limit = normal_tail(error_rate / static_cast<double>(std::max<std::size_t>(tests, 1)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double worse_by = low_is_bad ? median - values[i] : values[i] - median;
    const double percent = median == 0 ? 0 : 100 * worse_by / std::abs(median);
    if (worse_by / spread > limit && percent > least_percent) found.push_back({i, median, percent, worse_by / spread});
  }
  return found;
}

void compare_with_peers(HealthReport* report, const Site& site) {
  const CheckThreshold threshold = threshold_of("peers", site);
  const auto rates = samples_of(*report, false);
  std::size_t tests = 0, compared = 0;
  for (const auto& [key, samples] : rates) tests += samples.size();
  Judgements judgements(*report, "peers");
  for (const auto& [key, samples] : rates) {
    std::vector<double> values;
    for (const Sample& sample : samples) values.push_back(sample.value->number());
    if (values.size() >= fewest_peers) ++compared;
    const bool low_is_bad = samples.front().value->compare() == HealthValue::HIGHER;
    for (const Outlier& one : find_outliers(values, low_is_bad, tests, threshold.warn.value_or(0))) {
      const HealthValue& value = *samples[one.at].value;
      const HealthVerdict verdict = verdict_by(threshold, one.percent);
      if (verdict == PASS) continue;
      judgements.add(samples[one.at].node, verdict,
                     fmt::format("{} is {}, {:.1f}% worse than the median of {} ({}; {:.1f} deviations)",
                                 name_of(key, value), plain(value), one.percent, samples.size(),
                                 text_with_unit(one.median, value.unit()), one.deviations));
    }
  }
  if (report->node_size() > 1) {
    for (const auto& [key, samples] : samples_of(*report, true)) {
      judge_equality(key, samples, judgements);
      ++compared;
    }
  }
  const std::string fine = compared == 0 ? "" : fmt::format("as the others, by {} values", compared);
  judgements.write(report, std::vector<std::string>(static_cast<std::size_t>(report->node_size()), fine),
                   "there are too few to compare with");
}

void compare_with_history(HealthReport* report, const std::map<std::string, std::vector<NodeHealth>>& earlier,
                          const Site& site) {
  const CheckThreshold threshold = threshold_of("history", site);
  const auto rates = samples_of(*report, false);
  std::size_t tests = 0;
  for (const auto& [key, samples] : rates) tests += samples.size();
  const double limit = normal_tail(error_rate / static_cast<double>(std::max<std::size_t>(tests, 1)));
  Judgements judgements(*report, "history");
  std::vector<std::string> fine(static_cast<std::size_t>(report->node_size()));
  for (const auto& [key, samples] : rates) {
    for (const Sample& sample : samples) {
      const auto of_node = earlier.find(report->node(sample.node).node());
      if (of_node == earlier.end()) continue;
      std::vector<double> before;
      for (const NodeHealth& node : of_node->second) {
        for (const CheckResult& check : node.check()) {
          for (const HealthValue& value : check.value()) {
            if (check.id() == key.first && value.name() == key.second && value.entity() == sample.value->entity()) {
              before.push_back(value.number());
            }
          }
        }
      }
      if (before.size() < fewest_runs) continue;
      fine[static_cast<std::size_t>(sample.node)] = fmt::format("as in {} earlier checks", of_node->second.size());
      const double median = median_of(before);
      for (double& value : before) value = std::abs(value - median);
      const double spread = std::max(normal_mad * median_of(before), 2 * least_spread * std::abs(median));
      const double now = sample.value->number();
      const double worse_by = sample.value->compare() == HealthValue::HIGHER ? median - now : now - median;
      const double percent = median == 0 ? 0 : 100 * worse_by / std::abs(median);
      const HealthVerdict verdict = verdict_by(threshold, percent);
      if (verdict == PASS || !(spread > 0) || worse_by / spread <= limit) continue;
      judgements.add(sample.node, verdict,
                     fmt::format("{} is {}, {:.1f}% worse than the node's own median of {} checks ({})",
                                 name_of(key, *sample.value), plain(*sample.value), percent, before.size(),
                                 text_with_unit(median, sample.value->unit())));
    }
  }
  judgements.write(report, fine, "there are fewer than 5 earlier checks of this node (health.history of the site)");
}

}  // namespace ananke
