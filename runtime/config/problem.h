// One thing that is wrong with a configuration: which field, and what a person should know and do.
#pragma once

#include <string>
#include <vector>

namespace ananke {

struct Problem {
  std::string path;     // "model.hidden_size", "optimizer[1].use", "plugins.adamw.lr"
  std::string message;  // complete without the path; has the numbers and what to do
};

using Problems = std::vector<Problem>;

}  // namespace ananke
