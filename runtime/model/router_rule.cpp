#include "runtime/model/router_rule.h"

#include "ananke/model.pb.h"

namespace ananke {

RouterRule router_rule(const Model& model, bool forced_balance) {
  RouterRule rule;
  rule.score = model.scoring_func() == Model::SIGMOID ? RouterRule::Score::sigmoid : RouterRule::Score::softmax;
  rule.normalise = model.norm_topk_prob();
  rule.scaling_factor = model.routed_scaling_factor();
  rule.forced_balance = forced_balance;
  switch (model.group_routing()) {
    case Model::NO_GROUPS: break;
    case Model::GROUPS_LIMITED_TOP_K:
      rule.grouping = RouterRule::Grouping::groups_limited_top_k;
      rule.groups = model.n_group();
      rule.kept_groups = model.topk_group();
      break;
    case Model::TOP_K_PER_GROUP:
      rule.grouping = RouterRule::Grouping::top_k_per_group;
      rule.groups = model.n_group();
      break;
  }
  return rule;
}

}  // namespace ananke
