// After a step that is not finite: where the first such value is, so that a person knows where to look.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/roles/parameters.h"

namespace ananke {

// "weight model.norm.weight, element 3, is nan; optimizer plugin 'lion' updates it", or empty when all that this rank
// owns is finite. `optimizers`: of each parameter. Reads the device, fragment by fragment.
std::string find_non_finite_weight(Device& device, const ParameterTable& table,
                                   std::span<const OwnedFragment> fragments,
                                   const std::vector<std::string>& optimizers);

// "the gradient of model.norm.weight, element 3, is inf", likewise; complete after Parameters::finish().
std::string find_non_finite_gradient(Device& device, const ParameterTable& table,
                                     std::span<const OwnedFragment> fragments);

}  // namespace ananke
