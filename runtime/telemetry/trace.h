// The trace of one step of one rank: what the host thread that issues work does, and what runs on the device's streams.
// Unless a step is traced (engine/step_tracer.h) nothing is recorded and a span costs one branch.
//
//   const TraceSpan span(TraceKind::call, [&] { return TraceText{"gather " + unit.name}; });   nests; the issuing
//   thread const TraceLaunch launch = TraceLaunch::current();   where work is put on a stream launch.ran("compute",
//   TraceKind::launched, begin, end);   where it has run; any thread
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace ananke {

enum class TraceKind : std::uint8_t {
  step,
  phase,       // a part of the step: an item of the schedule, the optimizer, an evaluation
  call,        // of a plugin
  operation,   // an operator of the backend
  collective,  // among ranks
  copy,        // of memory, or filling it
  wait,        // of a stream, for another
  kernel,      // as the device names it; what launched it stands beside
  launched     // of a task: as the span that launched it
};
const char* name_of(TraceKind kind) noexcept;  // "operator" for operation, else as spelled here

struct TraceArgument {
  TraceArgument(const char* argument, std::string value) : name(argument), text(std::move(value)) {}
  template <std::integral Number>
  TraceArgument(const char* argument, Number value) : name(argument), text(std::to_string(value)), is_number(true) {}
  const char* name;
  std::string text;
  bool is_number = false;
};

struct TraceText {
  std::string name;
  std::vector<TraceArgument> arguments = {};
};

using TraceClock = std::chrono::steady_clock;

// Of the issuing thread. `parent`: number of the span around it, 0: none.
struct TraceSpanRecord {
  TraceKind kind;
  TraceText text;
  TraceClock::time_point begin, end;
  std::uint64_t parent;
};

// A piece of work that a stream has run.
struct TraceTask {
  std::string stream;  // name_of(Resource), or what the backend calls another one
  TraceKind kind = TraceKind::launched;
  TraceText text = {};  // without name: that of the span that launched it
  TraceClock::time_point begin = {}, end = {};
  std::uint64_t launch = 0;  // number of the span that it was put on the stream in; 0: not known
};

// What is recorded of one step. Held by shared pointer: work still on a stream keeps it.
class Trace : public std::enable_shared_from_this<Trace> {
 public:
  // That of this thread, or null.
  static Trace* current() noexcept;
  // This thread issues the work of the step that `trace` is of; null: of none any more. Not owned.
  static void make_current(Trace* trace) noexcept;

  // The issuing thread. Spans are numbered from 1 in the order in which they open.
  void open(TraceKind kind, TraceText text);
  void close();
  std::uint64_t innermost() const noexcept { return open_.empty() ? 0 : open_.back(); }

  void add(TraceTask task);     // any thread
  void note(std::string text);  // any thread; for the reader: what is missing from this trace and why

  // Once no thread adds any more.
  const std::vector<TraceSpanRecord>& spans() const noexcept { return spans_; }
  std::vector<TraceTask> tasks() const;  // by their begin
  std::vector<std::string> notes() const;
  // The innermost span that was open then, by number; 0: none.
  std::uint64_t span_at(TraceClock::time_point when) const noexcept;
  // With what the spans around its launch say. "phase": the part of the step; "in": the plugin's call. A task without a
  // name gets that of the operator, collective or copy that launched it, and its arguments; for one with a name that is
  // "operator", and a kernel gets its arguments, too.
  TraceTask resolved(TraceTask task) const;

 private:
  std::vector<TraceSpanRecord> spans_;
  std::vector<std::uint64_t> open_;
  mutable std::mutex mutex_;
  std::vector<TraceTask> tasks_;
  std::vector<std::string> notes_;
};

// While it lives, and a step is traced, a span of this thread.
class TraceSpan {
 public:
  TraceSpan(TraceKind kind, const char* name) : trace_(Trace::current()) {
    if (trace_) trace_->open(kind, {name});
  }
  // `describe` gives the TraceText; it is called only where a step is traced.
  template <std::invocable Describe>
  TraceSpan(TraceKind kind, Describe&& describe) : trace_(Trace::current()) {
    if (trace_) trace_->open(kind, std::forward<Describe>(describe)());
  }
  ~TraceSpan() {
    if (trace_) trace_->close();
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  Trace* const trace_;
};

// What a stream keeps with a piece of work until it has run. Empty where no step is traced.
class TraceLaunch {
 public:
  TraceLaunch() = default;
  static TraceLaunch current();  // inside the innermost span of this thread
  explicit operator bool() const noexcept { return trace_ != nullptr; }
  void ran(const std::string& stream, TraceKind kind, TraceClock::time_point begin, TraceClock::time_point end) const;

 private:
  std::shared_ptr<Trace> trace_;
  std::uint64_t span_ = 0;
};

}  // namespace ananke
