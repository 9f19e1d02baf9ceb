// Starting a job of Slurm again, by itself: at most once for each end, never again and again without a new checkpoint.
//
//   RUN_DIR/restarts.jsonl   a line for each start: {"job":"77","restart":2,"step":120,"time":"2026-11-30T09:05:00Z"};
//                            step: of the newest complete checkpoint then, 0 where there was none
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/base/error.h"

namespace ananke {

class Batch;

struct Start {
  std::string job;
  int restart = 0;  // SLURM_RESTART_COUNT
  std::uint64_t step = 0;
  std::string time;
};

std::vector<Start> read_starts(const std::filesystem::path& run_dir);  // lines that are none are left out
// Throws Error(resource).
void record_start(const std::filesystem::path& run_dir, const Start& start);

// Of the starts of one job of Slurm, oldest first, of which the last is now: why there were enough; empty: go on.
std::string enough_starts(const std::vector<Start>& starts, const Batch& limits);

// Why a job that ends like this is not to be started again; empty: it is. `begin` and `now`: the newest checkpoint's
// step at the start and at the end.
std::string why_no_restart(ErrorKind end, bool by_keyboard, std::uint64_t begin, std::uint64_t now);

// Puts the running job back into the queue: Slurm then ends this process. Returns why that was not possible, as text;
// empty: it is done.
std::string requeue(const std::string& job, std::chrono::milliseconds deadline);

}  // namespace ananke
