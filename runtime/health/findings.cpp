#include "runtime/health/findings.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/base/units.h"

namespace ananke {

int badness(HealthVerdict verdict) {
  switch (verdict) {
    case SKIPPED: return 0;
    case PASS: return 1;
    case WARN: return 2;
    case UNKNOWN: return 3;
    case FAIL: return 4;
  }
  return 3;
}

HealthVerdict worse(HealthVerdict a, HealthVerdict b) { return badness(a) >= badness(b) ? a : b; }

HealthVerdict verdict_by(const CheckThreshold& threshold, double value) {
  if (std::isnan(value)) return UNKNOWN;
  const auto beyond = [&](const std::optional<double>& limit) {
    return limit && (threshold.low_is_bad ? value < *limit : value > *limit);
  };
  return beyond(threshold.fail) ? FAIL : beyond(threshold.warn) ? WARN : PASS;
}

std::string text_with_unit(double value, const std::string& unit) {
  if (std::isinf(value)) return value > 0 ? "unlimited" : "-unlimited";
  if (unit == "bytes") return format_bytes(static_cast<std::uint64_t>(std::max(value, 0.0)));
  return fmt::format("{:.6g}{}{}", value, unit.empty() || unit == "%" ? "" : " ", unit);
}

void Findings::add(HealthVerdict verdict, HealthCause cause, const std::string& sentence, const std::string& advice) {
  // Of a defect and of somebody's use together, the defect is what counts.
  const bool worst = !found_ || badness(verdict) > badness(result_.verdict());
  if (worst || (verdict == result_.verdict() && cause == DEFECT)) {
    if (verdict == FAIL) result_.set_cause(cause);
    if (worst || !advice.empty()) result_.set_advice(advice);
  }
  if (worst) result_.set_verdict(verdict);
  found_ = true;
  // The worst comes first.
  const std::string before = result_.reason();
  result_.set_reason(before.empty() ? sentence : worst ? sentence + "; " + before : before + "; " + sentence);
}

void Findings::fail(HealthCause cause, const std::string& sentence, const std::string& advice) {
  add(FAIL, cause, sentence, advice);
}
void Findings::warn(const std::string& sentence, const std::string& advice) { add(WARN, DEFECT, sentence, advice); }
void Findings::unknown(const std::string& sentence, const std::string& advice) {
  add(UNKNOWN, DEFECT, sentence, advice);
}

bool Findings::has_threshold(const std::string& name) const {
  const auto found = std::ranges::find(context_.thresholds, name, &CheckThreshold::name);
  return found != context_.thresholds.end() && (found->fail || found->warn);
}

void Findings::judge(const std::string& name, double value, const std::string& sentence, const std::string& advice,
                     HealthCause cause) {
  const auto threshold = std::ranges::find(context_.thresholds, name, &CheckThreshold::name);
  ANANKE_CHECK(threshold != context_.thresholds.end(), "the check has no threshold '{}'", name);
  const HealthVerdict verdict = verdict_by(*threshold, value);
  if (verdict == PASS) return;
  if (verdict == UNKNOWN) return unknown(sentence + ": no number", advice);
  const double limit = verdict == FAIL ? *threshold->fail : *threshold->warn;
  const std::string text =
      fmt::format("{} ({} {} {})", sentence, verdict == FAIL ? "FAIL" : "WARN",
                  threshold->low_is_bad ? "below" : "above", text_with_unit(limit, threshold->unit));
  add(verdict, cause, text, advice);
}

HealthValue& Findings::value(const std::string& name, const std::string& entity, HealthValue::Compare compare) {
  HealthValue& value = *result_.add_value();
  value.set_name(name);
  if (!entity.empty()) value.set_entity(entity);
  if (compare != HealthValue::NONE) value.set_compare(compare);
  return value;
}

void Findings::number(const std::string& name, const std::string& entity, double number, const std::string& unit,
                      HealthValue::Compare compare) {
  HealthValue& one = value(name, entity, compare);
  one.set_number(number);
  if (!unit.empty()) one.set_unit(unit);
}

void Findings::text(const std::string& name, const std::string& entity, const std::string& text,
                    HealthValue::Compare compare) {
  value(name, entity, compare).set_text(text);
}

CheckResult Findings::result(const std::string& fine) {
  if (!found_) {
    result_.set_verdict(PASS);
    result_.set_reason(fine);
  }
  return result_;
}

CheckResult Findings::skipped(const std::string& why) {
  if (!found_) {
    result_.set_verdict(SKIPPED);
    result_.set_reason(why);
  }
  return result_;
}

}  // namespace ananke
