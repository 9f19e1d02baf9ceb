// What is wrong with variables that NCCL reads: numbers that do not fit the hardware's fields, words that it does not
// know and passes over, values that undo each other, and what a site knows to do harm. Pure.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace ananke {

class Site;

using Environment = std::map<std::string, std::string>;

Environment this_environment();

struct EnvironmentFinding {
  std::string variable;
  std::string text;     // a sentence with the value, what is wrong with it and what to do
  bool refuse = false;  // a job would fail, hang, or run on something else than it seems to
};

struct EnvironmentUse {
  int ranks = 1;
  bool several_nodes = false;
};

// By variable. An empty value counts as unset.
std::vector<EnvironmentFinding> lint_environment(const Environment& environment, const Site& site,
                                                 const EnvironmentUse& use);

// The site's variables that the environment does not set.
std::vector<std::pair<std::string, std::string>> missing_site_variables(const Environment& environment,
                                                                        const Site& site);

// The environment with these.
Environment with_site_variables(Environment environment, const Site& site);

}  // namespace ananke
