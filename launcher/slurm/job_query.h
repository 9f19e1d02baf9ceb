// What Slurm says of a job.
#pragma once

#include <chrono>
#include <map>
#include <string>

namespace ananke {

struct SlurmJob {
  std::map<std::string, std::string> fields;  // "JobState", "NodeList", ... as scontrol has them
  std::string problem;                        // why there are none

  std::string field(const std::string& name) const;  // empty where there is none
  std::string state() const { return field("JobState"); }
};

// `scontrol show job`.
SlurmJob ask_for_job(const std::string& job, std::chrono::milliseconds deadline);

// Its "Key=Value" words. A key that comes again is one of a part: the first counts.
std::map<std::string, std::string> parse_job_fields(const std::string& text);

}  // namespace ananke
