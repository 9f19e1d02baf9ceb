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

// microbatch_outer: for each microbatch all blocks forward, head, all blocks backward.
// layer_outer: for each block all microbatches forward; the head for each; for each block all microbatches backward.
enum class LoopOrder { microbatch_outer, layer_outer };
Schedule training_schedule(const ParameterTable& table, int microbatches, LoopOrder order);
Schedule evaluation_schedule(const ParameterTable& table);  // one microbatch, forward only, the head last

std::string to_string(const Schedule& schedule, const ParameterTable& table);

}  // namespace ananke
