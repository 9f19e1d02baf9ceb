#include "launcher/slurm/job_query.h"

#include <sstream>
#include <vector>

#include "launcher/slurm/command.h"

namespace ananke {

std::string SlurmJob::field(const std::string& name) const {
  const auto found = fields.find(name);
  return found == fields.end() ? "" : found->second;
}

std::map<std::string, std::string> parse_job_fields(const std::string& text) {
  std::map<std::string, std::string> fields;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const auto equals = word.find('=');
    if (equals != std::string::npos) fields.emplace(word.substr(0, equals), word.substr(equals + 1));
  }
  return fields;
}

SlurmJob ask_for_job(const std::string& job, std::chrono::milliseconds deadline) {
  const std::vector<std::string> words{"scontrol", "show", "job", "--oneliner", job};
  const CommandOutput said = run_command(words, deadline);
  if (said.late || said.code != 0) return {{}, describe_failure(words, said, deadline)};
  return {parse_job_fields(said.output), ""};
}

}  // namespace ananke
