// Every kind of router, for 8 experts and k = 4: what tests of operators and of whole engines go through.
#pragma once

#include <string>
#include <vector>

#include "runtime/operators/router.h"

namespace ananke {

struct RuleCase {
  std::string name;
  RouterRule rule;
};

inline std::vector<RuleCase> router_rules() {
  using Rule = RouterRule;
  std::vector<RuleCase> cases;
  for (const Rule::Score score : {Rule::Score::softmax, Rule::Score::sigmoid}) {
    const std::string name = score == Rule::Score::softmax ? "softmax" : "sigmoid";
    cases.push_back({name, {.score = score}});
    cases.push_back({name + " as it is", {.score = score, .normalise = false}});
    cases.push_back({name + " scaled", {.score = score, .scaling_factor = 2.5}});
    cases.push_back({name + " of limited groups",
                     {.score = score,
                      .scaling_factor = 1.5,
                      .grouping = Rule::Grouping::groups_limited_top_k,
                      .groups = 4,
                      .kept_groups = 2}});
    cases.push_back({name + " per group", {.score = score, .grouping = Rule::Grouping::top_k_per_group, .groups = 2}});
    cases.push_back({name + " forced", {.score = score, .forced_balance = true}});
  }
  return cases;
}

}  // namespace ananke
