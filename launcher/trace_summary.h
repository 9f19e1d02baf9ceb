// What one traced step says: how busy each stream is, where it stands still, and what takes the time. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/telemetry/trace_records.h"

namespace ananke {

// Times in ns, within the step.
struct StreamSummary {
  std::string name;
  std::int64_t busy = 0;     // something runs; waiting for another stream is not running
  std::uint64_t gaps = 0;    // stretches in which nothing does, those at the step's ends among them
  std::int64_t idle = 0;     // of all gaps
  std::int64_t largest = 0;  // gap
  std::int64_t exposed = 0;  // busy while compute is not; of compute itself 0
};

struct WorkSummary {
  std::string stream, name;
  std::uint64_t calls = 0;
  std::int64_t total = 0;  // those that run at once count each
};

struct TraceSummary {
  std::int64_t step = 0;               // its length
  std::vector<StreamSummary> streams;  // those that have run anything, and compute, first
  // Of the time in which compute stands still: another stream runs, or none does: then the device waits for the host.
  std::int64_t exposed = 0, launch_gaps = 0;
  // Most time first. By operator, collective or copy; by kernel where the device names them.
  std::vector<WorkSummary> work, kernels;
};

TraceSummary summarise(const TraceRecords& records);

// Tables; `top` lines of those by work and by kernel.
std::string trace_text(const TraceRecords& records, std::size_t top);

}  // namespace ananke
