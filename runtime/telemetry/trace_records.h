// Reads a trace back that trace_file.h wrote, one event at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/json.h"

namespace ananke {

// The lines of the file. Throws Error(data) where it cannot be read, is none of these, or is damaged; a last line that
// is not whole is a file whose writer was killed, and no error.
class TraceLines {
 public:
  explicit TraceLines(const std::filesystem::path& file);
  const Json& header() const noexcept { return header_; }  // "otherData"
  // The next event; nothing at the end.
  std::optional<Json> next();
  const std::string& line() const noexcept { return line_; }  // that of the event, without a comma
  bool whole() const noexcept { return closed_; }             // at the end: the file says that it ends there

 private:
  bool read_line();
  [[noreturn]] void refuse(const std::string& what) const;
  const std::string name_;
  std::ifstream file_;
  std::string line_;
  std::uint64_t number_ = 0;  // of the line
  Json header_;
  bool closed_ = false;
};

// The step that an event is of; nothing where it is of none (names of tracks).
std::optional<std::uint64_t> step_of(const Json& event);

struct TraceEvent {
  std::string stream;  // "host" for the thread that issues work
  std::string kind;    // name_of(TraceKind)
  std::string name;
  std::string launcher;             // of a kernel: the operator that launched it, where known
  std::int64_t begin = 0, end = 0;  // ns since the file's origin
};

struct TraceRecords {
  std::string job;
  int rank = 0, ranks = 1;
  std::vector<std::uint64_t> steps;  // in the file
  std::uint64_t step = 0;            // whose events these are
  std::int64_t begin = 0, end = 0;   // of the step, ns
  std::vector<TraceEvent> events;    // but that of the step itself
  std::vector<std::string> notes;    // what is missing from the step and why
  bool whole = true;                 // false: the writer was killed, or is still writing
};

// Of the step asked for, or the last; where the file was cut, the last that is whole, if any. Throws Error(data) as
// above, and where the step is not in the file.
TraceRecords read_trace(const std::filesystem::path& file, std::optional<std::uint64_t> step);

}  // namespace ananke
