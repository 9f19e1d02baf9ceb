#include "runtime/engine/optimizer_rules.h"

#include <regex>

#include "ananke/job.pb.h"
#include "runtime/base/error.h"

namespace ananke {
namespace {

std::regex compile(const std::string& pattern, int rule) {
  try {
    return std::regex(pattern, std::regex::ECMAScript | std::regex::optimize);
  } catch (const std::regex_error& error) {
    fail(ErrorKind::config, "optimizer[{}].match '{}' is not a regular expression: {}", rule, pattern, error.what());
  }
}

}  // namespace

std::vector<std::string> optimizer_of_each(const Job& job, const ParameterTable& table) {
  std::vector<std::string> chosen(table.parameters().size());
  for (int rule = 0; rule < job.optimizer_size(); ++rule) {
    const std::regex pattern = compile(job.optimizer(rule).match(), rule);
    std::size_t matched = 0, taken = 0;
    for (std::size_t p = 0; p < chosen.size(); ++p) {
      if (!std::regex_search(table.parameters()[p].name, pattern)) continue;
      ++matched;
      if (!chosen[p].empty()) continue;
      chosen[p] = job.optimizer(rule).use();
      ++taken;
    }
    if (taken == 0) {
      fail(ErrorKind::config, "optimizer[{}] (match '{}', use {}) gets none of the {} parameters: {}", rule,
           job.optimizer(rule).match(), job.optimizer(rule).use(), chosen.size(),
           matched ? fmt::format("the {} it matches went to earlier rules; move it up or remove it", matched)
                   : "no name matches; names are like 'model.layers.0.self_attn.q_proj.weight'");
    }
  }
  for (std::size_t p = 0; p < chosen.size(); ++p) {
    if (chosen[p].empty()) {
      fail(ErrorKind::config,
           "no optimizer rule matches parameter {}; end the list with optimizer {{ match: \".*\" use: ... }}",
           table.parameters()[p].name);
    }
  }
  return chosen;
}

}  // namespace ananke
