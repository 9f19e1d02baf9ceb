// A job out of a run folder, read as far as this installation can: the run may be of another version, and its plugins
// may be gone or others.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "ananke/job.pb.h"

namespace ananke {

struct FieldText {
  // "model.hidden_size", "optimizer[0].use"; by name what has one: "plugins.adamw.lr", "evaluation.held_out[wiki].rows"
  std::string path;
  std::string value;  // as the text format has it; a list of numbers or words is one value, "[0, 2]"
};

struct RecordedJob {
  Job job;
  std::vector<FieldText> fields;      // all that are set, in the schema's order
  std::vector<std::string> not_read;  // what is in the file and not in here: one sentence each
};

// Throws Error(config) where the file is missing or no resolved job.
RecordedJob read_recorded_job(const std::filesystem::path& file);

struct FieldDifference {
  std::string path;
  const std::string* a;  // null: that job has no such field
  const std::string* b;
};

// In the order of the paths of a, those of b alone behind their neighbours. Points into the arguments.
std::vector<FieldDifference> differences(const std::vector<FieldText>& a, const std::vector<FieldText>& b);

}  // namespace ananke
