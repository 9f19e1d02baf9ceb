// Makes the result of one check out of what it finds: the worst finding is the verdict, and its sentences the reason.
//
//   Findings found(context);
//   found.number("free", "numa0", bytes, "bytes");
//   found.judge("free", bytes, "NUMA node 0 has 58.0 GiB free or as page cache");     by the threshold of that name
//   if (!file) found.unknown("/proc/meminfo cannot be read");
//   return found.result("all 4 NUMA nodes have 108 GiB or more");                     the reason where nothing is wrong
#pragma once

#include <string>

#include "runtime/roles/check.h"

namespace ananke {

class Findings {
 public:
  explicit Findings(const CheckContext& context) : context_(context) {}

  void fail(HealthCause cause, const std::string& sentence, const std::string& advice = "");
  void warn(const std::string& sentence, const std::string& advice = "");
  void unknown(const std::string& sentence, const std::string& advice = "");
  // FAIL, WARN or nothing, by the threshold of that name. The sentence gets "; at least 70 GiB are needed" behind it.
  // Throws Error(internal) where the check has no such threshold.
  void judge(const std::string& threshold, double value, const std::string& sentence, const std::string& advice = "",
             HealthCause cause = DEFECT);
  bool has_threshold(const std::string& name) const;  // one that says something

  void number(const std::string& name, const std::string& entity, double value, const std::string& unit,
              HealthValue::Compare compare = HealthValue::NONE);
  void text(const std::string& name, const std::string& entity, const std::string& value,
            HealthValue::Compare compare = HealthValue::NONE);

  // PASS, or worse with the sentences found. UNKNOWN is worse than WARN and better than FAIL.
  CheckResult result(const std::string& fine);
  // SKIPPED with this reason where nothing was found.
  CheckResult skipped(const std::string& why);

 private:
  void add(HealthVerdict verdict, HealthCause cause, const std::string& sentence, const std::string& advice);
  HealthValue& value(const std::string& name, const std::string& entity, HealthValue::Compare compare);
  const CheckContext& context_;
  CheckResult result_;
  bool found_ = false;
};

// FAIL before UNKNOWN before WARN before PASS before SKIPPED.
int badness(HealthVerdict verdict);
HealthVerdict worse(HealthVerdict a, HealthVerdict b);
HealthVerdict verdict_by(const CheckThreshold& threshold, double value);
// "70.0 GiB", "4.5 s", "3".
std::string text_with_unit(double value, const std::string& unit);

}  // namespace ananke
