// A model's router rule, from its message.
#pragma once

#include "runtime/operators/router.h"

namespace ananke {

class Model;

RouterRule router_rule(const Model& model, bool forced_balance = false);

}  // namespace ananke
