// Which optimizer every parameter gets: job.optimizer, first match wins.
#pragma once

#include <string>
#include <vector>

#include "runtime/model/parameter_table.h"

namespace ananke {

class Job;

// Per parameter of the table the name of its optimizer plugin. Throws Error(config): a rule that no parameter matches
// or reaches, a parameter without a rule, a match that is no regular expression.
std::vector<std::string> optimizer_of_each(const Job& job, const ParameterTable& table);

}  // namespace ananke
