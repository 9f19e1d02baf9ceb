#include "runtime/telemetry/trace_file.h"

#include <stdio_ext.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/replace_file.h"
#include "runtime/device/stream.h"
#include "runtime/telemetry/trace_records.h"

namespace ananke {
namespace {

constexpr const char* end_of_file = "\n]}\n";
constexpr int host_track = 1;
constexpr int first_other_track = 100;  // of streams that are no resource

std::int64_t midnight() {
  constexpr std::int64_t day = 24 * 60 * 60;
  return static_cast<std::int64_t>(std::time(nullptr)) / day * day;
}

std::int64_t nanoseconds(std::chrono::nanoseconds duration) { return duration.count(); }

std::string microseconds(std::int64_t ns) {
  ns = std::max<std::int64_t>(ns, 0);
  return fmt::format("{}.{:03}", ns / 1000, ns % 1000);
}

std::string header_line(const TraceFile::Setup& setup, std::int64_t origin) {
  return fmt::format(
      R"({{"displayTimeUnit":"ms","otherData":{{"program":"ananke","job":{},"rank":{},"ranks":{},"origin":{}}},)"
      R"("traceEvents":[)",
      json_quoted(setup.job), setup.rank, setup.ranks, origin);
}

std::string named(int pid, int tid, const char* what, const std::string& arguments) {
  return fmt::format(R"({{"ph":"M","pid":{},"tid":{},"name":"{}","args":{{{}}}}})", pid, tid, what, arguments);
}

// The stream and its tid that an event gives the name of; 0: it gives none.
std::pair<std::string, int> named_track(const Json& event) {
  const Json *name = event.find("name"), *tid = event.find("tid"), *arguments = event.find("args");
  if (!name || name->text() != "thread_name" || !tid || !arguments) return {};
  const Json* stream = arguments->find("name");
  return {stream ? stream->text() : "", static_cast<int>(tid->as_unsigned().value_or(0))};
}

}  // namespace

std::filesystem::path trace_folder(const std::filesystem::path& run_dir) { return run_dir / "trace"; }

std::filesystem::path trace_file(const std::filesystem::path& run_dir, int rank) {
  return trace_folder(run_dir) / fmt::format("rank_{}.json", rank);
}

TraceFile::TraceFile(const Setup& setup) : path_(trace_file(setup.run_dir, setup.rank)), pid_(setup.rank + 1) {
  std::error_code error;
  std::filesystem::create_directories(path_.parent_path(), error);
  if (error) fail(ErrorKind::resource, "cannot make the folder {}: {}", path_.parent_path().string(), error.message());
  if (setup.resumed_after && std::filesystem::exists(path_, error)) {
    keep(setup);
  } else {
    begin_anew(setup);
  }
  tracks_["host"] = host_track;
  for (int i = 0; i < resource_count; ++i) tracks_[name_of(static_cast<Resource>(i))] = host_track + 1 + i;
}

void TraceFile::begin_anew(const Setup& setup) {
  file_.reset(std::fopen(path_.c_str(), "wbe"));
  if (!file_) refuse("make");
  origin_ = midnight();
  std::fputs((header_line(setup, origin_) + end_of_file).c_str(), file_.get());
  if (std::fflush(file_.get()) != 0) refuse("write");
}

// Steps that the run makes again go out; so does a line that a kill cut.
void TraceFile::keep(const Setup& setup) {
  TraceLines lines(path_);
  origin_ = static_cast<std::int64_t>(lines.header().find("origin")->as_unsigned().value_or(0));
  ReplacedFile replaced(path_);
  std::ofstream stream(replaced.partial(), std::ios::binary | std::ios::trunc);
  stream << header_line(setup, origin_);
  while (const std::optional<Json> event = lines.next()) {
    const std::optional<std::uint64_t> step = step_of(*event);
    if (step && *step > *setup.resumed_after) continue;
    if (const auto [stream, tid] = named_track(*event); tid > 0) tracks_[stream] = tid;
    stream << (std::exchange(first_, false) ? "\n" : ",\n") << lines.line();
  }
  stream << end_of_file;
  stream.close();
  if (!stream) refuse("write");
  replaced.commit();
  file_.reset(std::fopen(path_.c_str(), "r+be"));
  if (!file_) refuse("open");
}

void TraceFile::refuse(const char* action) const {
  fail(ErrorKind::resource, "cannot {} {}: {}; check that the run folder can be written and has room", action,
       path_.string(), std::strerror(errno));
}

void TraceFile::put(const std::string& line) {
  std::fputs(std::exchange(first_, false) ? "\n" : ",\n", file_.get());
  std::fputs(line.c_str(), file_.get());
}

std::string TraceFile::track(const std::string& stream) {
  const int next = first_other_track + static_cast<int>(tracks_.size());
  const auto [place, is_new] = tracks_.try_emplace(stream, next);
  if (is_new) put(named(pid_, next, "thread_name", fmt::format(R"("name":{})", json_quoted(stream))));
  return std::to_string(place->second);
}

void TraceFile::put_event(const TraceText& text, TraceKind kind, const std::string& tid, TraceClock::time_point begin,
                          TraceClock::time_point end, std::uint64_t step) {
  std::string arguments = fmt::format(R"("step":{})", step);
  for (const TraceArgument& one : text.arguments) {
    arguments += fmt::format(R"(,"{}":{})", one.name, one.is_number ? one.text : json_quoted(one.text));
  }
  const std::int64_t from = nanoseconds(begin.time_since_epoch()) + offset_;
  put(fmt::format(R"({{"ph":"X","pid":{},"tid":{},"cat":"{}","name":{},"ts":{},"dur":{},"args":{{{}}}}})", pid_, tid,
                  name_of(kind), json_quoted(text.name), microseconds(from), microseconds(nanoseconds(end - begin)),
                  arguments));
}

// A span that never closed is one of a step that an error ended.
void TraceFile::put_span(const TraceSpanRecord& span, std::uint64_t step) {
  const bool open = span.end == TraceClock::time_point{};
  put_event(span.text, span.kind, std::to_string(host_track), span.begin, open ? TraceClock::now() : span.end, step);
}

void TraceFile::put_task(const TraceTask& task, std::uint64_t step) {
  put_event(task.text, task.kind, track(task.stream), task.begin, task.end, step);
}

void TraceFile::write(std::uint64_t step, const Trace& trace) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  offset_ = nanoseconds(now) - origin_ * 1'000'000'000 - nanoseconds(TraceClock::now().time_since_epoch());
  const bool was_first = first_;
  const std::map<std::string, int> were_told = tracks_;
  errno = 0;
  if (std::fseek(file_.get(), -static_cast<long>(std::strlen(end_of_file)), SEEK_END) != 0) refuse("write");
  const long end = std::ftell(file_.get());
  if (first_) {
    put(named(pid_, host_track, "process_name", fmt::format(R"("name":"rank {}")", pid_ - 1)));
    put(named(pid_, host_track, "process_sort_index", fmt::format(R"("sort_index":{})", pid_)));
    for (const auto& [stream, tid] : tracks_) {
      put(named(pid_, tid, "thread_name", fmt::format(R"("name":"{}")", stream)));
      put(named(pid_, tid, "thread_sort_index", fmt::format(R"("sort_index":{})", tid)));
    }
  }
  for (const std::string& note : trace.notes()) {
    put(fmt::format(R"({{"ph":"i","pid":{},"tid":{},"s":"p","cat":"note","name":{},"ts":{},"args":{{"step":{}}}}})",
                    pid_, host_track, json_quoted(note),
                    microseconds(nanoseconds(TraceClock::now().time_since_epoch()) + offset_), step));
  }
  for (const TraceSpanRecord& span : trace.spans()) put_span(span, step);
  for (TraceTask& task : trace.tasks()) put_task(trace.resolved(std::move(task)), step);
  std::fputs(end_of_file, file_.get());
  if (std::fflush(file_.get()) == 0 && std::ferror(file_.get()) == 0) return;
  const int error = errno;
  undo(end);
  first_ = was_first;
  tracks_ = were_told;
  errno = error;
  refuse("write");
}

// The room of the end is the file's already, even where a disk is full.
void TraceFile::undo(long end) noexcept {
  const int descriptor = fileno(file_.get());
  const std::size_t bytes = std::strlen(end_of_file);
  __fpurge(file_.get());
  std::clearerr(file_.get());
  if (pwrite(descriptor, end_of_file, bytes, end) != static_cast<ssize_t>(bytes) ||
      ftruncate(descriptor, end + static_cast<long>(bytes)) != 0) {
    log_warning("{} has a torn end: {}", path_.string(), std::strerror(errno));
  }
}

}  // namespace ananke
