// `--set path=value`: any field of the job, from the command line.
//
//   model.hidden_size=128              a number, a truth value, an enum's name
//   optimizer[0].use=muon              an element of a list; the index behind the last one appends
//   model.mlp_only_layers=[0,2]        a whole list; mlp_only_layers+=3 appends
//   learning_rate={shape: COSINE}      a whole message
//   plugins.adamw.lr=1e-3              a field of a plugin's config, by the plugin's name; adds the plugin where the
//   job
//                                      does not name it
//   run_dir=runs/a  run_dir="runs/a"   text needs no quotes
#pragma once

#include <string>
#include <vector>

#include "runtime/config/path.h"

namespace ananke {

struct Override {
  std::string text;  // as given
  std::vector<PathStep> path;
  std::string value;
  bool append = false;  // +=
};

// Throws Error(config) naming the text and what is missing.
Override parse_override(const std::string& text);

// Changes the job. Throws Error(config): "--set model.hiden_size=8: message Model has no field ...".
// Returns the path in the form that problems have (plugins by name).
std::string apply_override(const Override& change, const Schema& schema, Job* job);

}  // namespace ananke
