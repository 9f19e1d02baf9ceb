// RUN_DIR/trace/rank_N.json: the traced steps of one rank in Chrome's trace event format, which ui.perfetto.dev opens.
//
// One event a line. Times are microseconds since midnight (UTC) of the day the file was begun, so that the files of
// several ranks can be laid over each other; pid is the rank + 1, tid a stream, the first the host thread that issues
// work. Steps follow each other; after each the file is complete JSON again.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "runtime/telemetry/trace.h"

namespace ananke {

std::filesystem::path trace_folder(const std::filesystem::path& run_dir);
std::filesystem::path trace_file(const std::filesystem::path& run_dir, int rank);

class TraceFile {
 public:
  struct Setup {
    std::filesystem::path run_dir;
    std::string job;  // its name
    int rank = 0, ranks = 1;
    // The run goes on behind this step: what the file has of it and those before stays. Empty: a file that is there is
    // replaced.
    std::optional<std::uint64_t> resumed_after = {};
  };
  // Makes folder and file. Throws Error(resource); Error(data) where the run goes on and the file is none of these.
  explicit TraceFile(const Setup& setup);
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Nothing may be added to the trace any more. Throws Error(resource) where it cannot be written; the file is then as
  // it was before.
  void write(std::uint64_t step, const Trace& trace);

 private:
  void begin_anew(const Setup& setup);
  void keep(const Setup& setup);
  std::string track(const std::string& stream);  // tid, told to the file when it is new
  void put(const std::string& line);
  void put_span(const TraceSpanRecord& span, std::uint64_t step);
  void put_task(const TraceTask& task, std::uint64_t step);
  void put_event(const TraceText& text, TraceKind kind, const std::string& tid, TraceClock::time_point begin,
                 TraceClock::time_point end, std::uint64_t step);
  void undo(long end) noexcept;
  [[noreturn]] void refuse(const char* action) const;

  const std::filesystem::path path_;
  const int pid_;
  struct Close {
    void operator()(FILE* file) const noexcept { std::fclose(file); }
  };
  std::unique_ptr<FILE, Close> file_;
  std::int64_t origin_ = 0;            // seconds since 1970
  std::int64_t offset_ = 0;            // of this step: ns from TraceClock's time to that since the origin
  bool first_ = true;                  // no event stands in the file yet
  std::map<std::string, int> tracks_;  // tid by stream
};

}  // namespace ananke
