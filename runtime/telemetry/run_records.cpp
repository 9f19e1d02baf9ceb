#include "runtime/telemetry/run_records.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "runtime/base/error.h"

namespace ananke {
namespace {

class Reader {
 public:
  void line(const std::string& text, std::uint64_t number, bool whole) {
    google::protobuf::util::JsonParseOptions options;
    options.ignore_unknown_fields = true;  // of a newer version
    TelemetryLine line;
    const bool readable = google::protobuf::util::JsonStringToMessage(text, &line, options).ok();
    if (!readable && !whole) {
      records.torn = true;
    } else if (!readable) {
      if (records.unreadable++ == 0) records.first_unreadable = number;
    } else {
      take(line);
    }
  }
  RunRecords records;

 private:
  void take(const TelemetryLine& line) {
    if (line.has_step()) {
      if (started_) records.first_steps.insert(line.step().step());
      started_ = false;
      records.steps[line.step().step()] = line.step();
    } else if (line.has_evaluation()) {
      const std::string& name = line.evaluation().held_out();
      auto& of_set = records.evaluations[name];
      if (of_set.empty()) records.held_out.push_back(name);
      of_set[line.evaluation().step()] = line.evaluation();
    } else if (line.has_event()) {
      started_ = started_ || line.event().kind() == RunEvent::STARTED || line.event().kind() == RunEvent::RESUMED;
      records.events.push_back(line.event());
    }
  }
  bool started_ = true;  // and no step since
};

}  // namespace

RunRecords read_run_records(const std::filesystem::path& run_dir) {
  const std::filesystem::path path = run_dir / "steps.jsonl";
  Reader reader;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  std::uint64_t number = 0;
  for (std::string text; std::getline(stream, text);) {
    const bool whole = !stream.eof();  // its end was read too
    if (!text.empty()) reader.line(text, ++number, whole);
  }
  if (!stream.eof()) {
    fail(ErrorKind::data, "cannot read {}: {}", path.string(), errno != 0 ? std::strerror(errno) : "it is no file");
  }
  reader.records.found = true;
  return std::move(reader.records);
}

}  // namespace ananke
