#include "runtime/telemetry/trace_records.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "runtime/base/error.h"

namespace ananke {
namespace {

std::string text_of(const Json& object, std::string_view key) {
  const Json* member = object.find(key);
  return member ? member->text() : "";
}

std::optional<std::int64_t> nanoseconds_of(const Json& event, const char* key) {
  const Json* member = event.find(key);
  const std::optional<double> microseconds = member ? member->as_double() : std::nullopt;
  if (!microseconds || std::abs(*microseconds) > 1e15) return std::nullopt;
  return std::llround(*microseconds * 1000);
}

// Fills in what the events of one step say.
class Collector {
 public:
  Collector(const std::string& file, std::optional<std::uint64_t> wanted) : file_(file), wanted_(wanted) {}
  void take(const Json& event);
  TraceRecords finish(bool whole);
  TraceRecords records;

 private:
  void take_step(std::uint64_t step);
  void take_span(const Json& event);
  const std::string file_;
  const std::optional<std::uint64_t> wanted_;
  std::map<std::string, std::string> tracks_;  // by tid
  std::optional<TraceRecords> before_;         // as far as the last step but one
};

// Steps follow each other: a new one puts what is there of the one before aside, where the last is asked for.
void Collector::take_step(std::uint64_t step) {
  if (!records.steps.empty() && records.steps.back() == step) return;
  if (!wanted_ && !records.steps.empty()) {
    before_ = std::move(records);
    records = {};
    records.job = before_->job;
    records.rank = before_->rank;
    records.ranks = before_->ranks;
    records.steps = before_->steps;
  }
  records.steps.push_back(step);
  if (wanted_ && step != *wanted_) return;
  records.step = step;
  records.begin = records.end = 0;
  records.events.clear();
  records.notes.clear();
}

void Collector::take_span(const Json& event) {
  const auto begin = nanoseconds_of(event, "ts"), duration = nanoseconds_of(event, "dur");
  if (!begin || !duration) {
    fail(ErrorKind::data, "{}: an event has no time: {}; it is damaged: trace the step again", file_, event.brief());
  }
  TraceEvent one{
      tracks_[text_of(event, "tid")], text_of(event, "cat"), text_of(event, "name"), "", *begin, *begin + *duration};
  if (one.kind == "step") {
    records.begin = one.begin;
    records.end = one.end;
    return;
  }
  if (const Json* arguments = event.find("args")) one.launcher = text_of(*arguments, "operator");
  records.events.push_back(std::move(one));
}

void Collector::take(const Json& event) {
  const std::string phase = text_of(event, "ph");
  const Json* arguments = event.find("args");
  if (phase == "M" && arguments && text_of(event, "name") == "thread_name") {
    tracks_[text_of(event, "tid")] = text_of(*arguments, "name");
  }
  const std::optional<std::uint64_t> step = step_of(event);
  if (!step) return;
  take_step(*step);
  if (records.step != *step) return;
  if (phase == "X") take_span(event);
  if (phase == "i") records.notes.push_back(text_of(event, "name"));
}

// Of a file that was cut the last step may lack events; that another one followed shows a step to be whole.
TraceRecords Collector::finish(bool whole) {
  if (!whole && before_) {
    before_->steps = records.steps;
    before_->notes.push_back(
        fmt::format("step {} is not shown, since it may lack events (--step {} shows it)", records.step, records.step));
    records = std::move(*before_);
  }
  if (records.steps.empty()) {
    fail(ErrorKind::data, "{} has no step: the run ended, or was killed, before its first traced step was done", file_);
  }
  if (wanted_ && *wanted_ != records.step) {
    fail(ErrorKind::data, "{} has no step {}; it has {}", file_, *wanted_, fmt::join(records.steps, ", "));
  }
  if (records.end <= records.begin) {
    fail(ErrorKind::data, "{}: step {} is not whole: the run was killed while it was written; ask for another of {}",
         file_, records.step, fmt::join(records.steps, ", "));
  }
  records.whole = whole;
  return std::move(records);
}

}  // namespace

TraceLines::TraceLines(const std::filesystem::path& file) : name_(file.string()), file_(file, std::ios::binary) {
  if (!file_) fail(ErrorKind::data, "cannot read {}: {}", name_, std::strerror(errno));
  if (!read_line() || !line_.ends_with("[")) refuse("it does not begin as one");
  const Json whole = Json::parse(line_ + "]}", name_);
  const Json* other = whole.find("otherData");
  if (other == nullptr || text_of(*other, "program") != "ananke") refuse("another program wrote it");
  for (const char* key : {"rank", "ranks", "origin"}) {
    const Json* member = other->find(key);
    if (member == nullptr || !member->as_unsigned()) refuse(fmt::format("its first line has no {}", key));
  }
  header_ = *other;
}

void TraceLines::refuse(const std::string& what) const {
  fail(ErrorKind::data, "{} is no trace of a run, or is damaged: {}; traces are RUN_DIR/trace/rank_N.json", name_,
       what);
}

// False at the end, and where the last line was cut.
bool TraceLines::read_line() {
  if (!std::getline(file_, line_)) return false;
  ++number_;
  return !file_.eof();
}

std::optional<Json> TraceLines::next() {
  if (closed_ || !read_line()) return std::nullopt;
  if (line_ == "]}") {
    closed_ = true;
    if (file_.peek() != std::ifstream::traits_type::eof())
      refuse(fmt::format("text follows its end, line {}", number_));
    return std::nullopt;
  }
  if (line_.ends_with(",")) line_.pop_back();
  return Json::parse(line_, name_, number_);
}

std::optional<std::uint64_t> step_of(const Json& event) {
  const Json* arguments = event.find("args");
  const Json* step = arguments ? arguments->find("step") : nullptr;
  return step ? step->as_unsigned() : std::nullopt;
}

TraceRecords read_trace(const std::filesystem::path& file, std::optional<std::uint64_t> step) {
  TraceLines lines(file);
  Collector collector(file.string(), step);
  collector.records.job = text_of(lines.header(), "job");
  collector.records.rank = static_cast<int>(lines.header().find("rank")->as_unsigned().value_or(0));
  collector.records.ranks = static_cast<int>(lines.header().find("ranks")->as_unsigned().value_or(1));
  while (const std::optional<Json> event = lines.next()) collector.take(*event);
  return collector.finish(lines.whole());
}

}  // namespace ananke
