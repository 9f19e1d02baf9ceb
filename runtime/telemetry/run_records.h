// Reads back what a run left in steps.jsonl, also while it is running or after it was killed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ananke/telemetry.pb.h"

namespace ananke {

struct RunRecords {
  bool found = false;                         // there is a file
  std::map<std::uint64_t, StepRecord> steps;  // by step; of one that stands there twice the later
  std::vector<std::string> held_out;          // names of sets, in the order they first appear
  std::map<std::string, std::map<std::uint64_t, EvaluationRecord>> evaluations;  // by set and step
  std::vector<RunEvent> events;                                                  // as written
  std::set<std::uint64_t> first_steps;  // on record first after a start or a resume
  bool torn = false;                    // the last line is not whole: it is being written, or a kill cut it
  std::uint64_t unreadable = 0;         // lines before it that are no records
  std::uint64_t first_unreadable = 0;   // number of the first of these, from 1
};

// Throws Error(data) where the file is there and cannot be read.
RunRecords read_run_records(const std::filesystem::path& run_dir);

}  // namespace ananke
