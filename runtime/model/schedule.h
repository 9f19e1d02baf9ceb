// The flat list of items of a step, fixed at start. Loop order is only how the list is written; prefetching is looking
// ahead in it.
#pragma once

#include <string>
#include <vector>

#include "runtime/model/parameter_table.h"

namespace ananke {

enum class Phase { forward, backward, both };  // both: the head, whose logits exist once

struct UnitUse {
  int unit;
  bool first_use;       // no earlier item of the step uses its weights
  bool last_use;        // no later item does
  bool first_gradient;  // this item begins its gradient of the step
  bool last_gradient;   // this item completes it
  bool needs_weights;   // false: only the gradient is touched (the embedding's backward needs no table)
};

struct Item {
  int block;
  Phase phase;
  int microbatch;
  std::vector<UnitUse> units;  // in the order the block uses them (backward: reversed)
};

using Schedule = std::vector<Item>;

// "layer.3 backward".
std::string name_of(const Item& item, const Block& block);

// Where in a schedule a rank is, for reports.
struct ItemPlace {
  std::size_t number = 0, of = 0;  // from 1; 0: nowhere yet
  std::string name = {};
  int microbatch = 0;
};
std::string to_string(const ItemPlace& place);  // "item 12 of 40, layer.3 backward, microbatch 0"

// For each group of `per_gather` microbatches, which must divide `microbatches`: for each block the group's forwards;
// the head for each; for each block the group's backwards.
Schedule training_schedule(const ParameterTable& table, int microbatches, int per_gather);
// The two ends: groups of one, and one group.
enum class LoopOrder { microbatch_outer, layer_outer };
inline Schedule training_schedule(const ParameterTable& table, int microbatches, LoopOrder order) {
  return training_schedule(table, microbatches, order == LoopOrder::layer_outer ? microbatches : 1);
}
Schedule evaluation_schedule(const ParameterTable& table);  // one microbatch, forward only, the head last

std::string to_string(const Schedule& schedule, const ParameterTable& table);

}  // namespace ananke
