#include "runtime/telemetry/trace.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace ananke {
namespace {

thread_local Trace* trace_of_thread = nullptr;

// Is a task that such a span launched called as the span is?
bool names_tasks(TraceKind kind) {
  return kind == TraceKind::operation || kind == TraceKind::collective || kind == TraceKind::copy;
}

}  // namespace

const char* name_of(TraceKind kind) noexcept {
  switch (kind) {
    case TraceKind::step: return "step";
    case TraceKind::phase: return "phase";
    case TraceKind::call: return "call";
    case TraceKind::operation: return "operator";
    case TraceKind::collective: return "collective";
    case TraceKind::copy: return "copy";
    case TraceKind::wait: return "wait";
    case TraceKind::kernel: return "kernel";
    case TraceKind::launched: return "launched";
  }
  return "unknown";
}

Trace* Trace::current() noexcept { return trace_of_thread; }
void Trace::make_current(Trace* trace) noexcept { trace_of_thread = trace; }

void Trace::open(TraceKind kind, TraceText text) {
  spans_.push_back({kind, std::move(text), {}, {}, innermost()});
  open_.push_back(spans_.size());
  spans_.back().begin = TraceClock::now();
}

void Trace::close() {
  ANANKE_CHECK(!open_.empty(), "a span of a trace is closed, and none is open");
  spans_[open_.back() - 1].end = TraceClock::now();
  open_.pop_back();
}

void Trace::add(TraceTask task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
}

void Trace::note(std::string text) {
  const std::lock_guard lock(mutex_);
  notes_.push_back(std::move(text));
}

std::vector<TraceTask> Trace::tasks() const {
  std::vector<TraceTask> tasks;
  {
    const std::lock_guard lock(mutex_);
    tasks = tasks_;
  }
  std::ranges::stable_sort(tasks, {}, &TraceTask::begin);
  return tasks;
}

std::vector<std::string> Trace::notes() const {
  const std::lock_guard lock(mutex_);
  return notes_;
}

// Spans nest and stand in the order of their begin: one that is open at a time is the last to begin before it, or one
// of those around it.
std::uint64_t Trace::span_at(TraceClock::time_point when) const noexcept {
  const auto after = std::ranges::upper_bound(spans_, when, {}, &TraceSpanRecord::begin);
  auto number = static_cast<std::uint64_t>(after - spans_.begin());
  const auto closed = [&](const TraceSpanRecord& span) {
    return span.end != TraceClock::time_point{} && span.end < when;
  };
  while (number > 0 && closed(spans_[number - 1])) number = spans_[number - 1].parent;
  return number;
}

TraceTask Trace::resolved(TraceTask task) const {
  const TraceSpanRecord *innermost = nullptr, *launcher = nullptr, *call = nullptr, *phase = nullptr;
  for (std::uint64_t at = task.launch; at > 0 && at <= spans_.size(); at = spans_[at - 1].parent) {
    const TraceSpanRecord& span = spans_[at - 1];
    if (!innermost) innermost = &span;
    if (!launcher && names_tasks(span.kind)) launcher = &span;
    if (!call && span.kind == TraceKind::call) call = &span;
    if (!phase && span.kind == TraceKind::phase) phase = &span;
  }
  const TraceSpanRecord* from = launcher ? launcher : innermost;
  if (task.kind == TraceKind::launched) task.kind = from ? from->kind : TraceKind::call;
  std::vector<TraceArgument>& arguments = task.text.arguments;
  if (task.text.name.empty()) {
    task.text.name = from ? from->text.name : "unknown";
    if (from) arguments.insert(arguments.end(), from->text.arguments.begin(), from->text.arguments.end());
  } else if (launcher) {
    arguments.emplace_back("operator", launcher->text.name);
    const std::vector<TraceArgument>& more = launcher->text.arguments;
    if (task.kind == TraceKind::kernel) arguments.insert(arguments.end(), more.begin(), more.end());
  }
  if (call && call != from) arguments.emplace_back("in", call->text.name);
  if (phase && phase != from) arguments.emplace_back("phase", phase->text.name);
  return task;
}

TraceLaunch TraceLaunch::current() {
  TraceLaunch launch;
  if (Trace* trace = Trace::current()) {
    launch.trace_ = trace->shared_from_this();
    launch.span_ = trace->innermost();
  }
  return launch;
}

void TraceLaunch::ran(const std::string& stream, TraceKind kind, TraceClock::time_point begin,
                      TraceClock::time_point end) const {
  TraceText text;
  if (kind == TraceKind::wait) text.name = "wait";
  trace_->add({stream, kind, std::move(text), begin, end, span_});
}

}  // namespace ananke
