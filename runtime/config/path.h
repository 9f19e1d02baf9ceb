// Paths into a job: "model.hidden_size", "optimizer[1].use", "plugins.adamw.lr".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/text.h"

namespace ananke {

class Job;

struct PathStep {
  std::string name;
  std::optional<int> index;
  std::string text() const;
};

// Throws Error(config) that opens with `what` and names the step it could not read.
std::vector<PathStep> parse_path(const std::string& what, std::string_view path);

// Index of the plugin's entry in job.plugins, by `use` or by its config message; -1: none.
int plugin_entry(const Job& job, const Schema& schema, std::string_view name);

// Where the path stands in the text the job was read from: "job.textproto:12:5". Where the field itself is not written
// there, the nearest message around it that is; else the file's name.
std::string locate(const SourceText& source, const Schema& schema, const Job& job, const std::string& path);

// The same for a text of another message, which holds no plugins.
std::string locate(const SourceText& source, const google::protobuf::Descriptor* message, const std::string& path);

}  // namespace ananke
