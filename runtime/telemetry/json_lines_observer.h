// Built-in observer: steps.jsonl in the run folder, one TelemetryLine (proto/ananke/telemetry.proto) per line.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/roles/observer.h"

namespace google::protobuf {
class Message;
}

namespace ananke {

class TelemetryLine;

// The message as one line of JSON: fields that are set, by their proto names; 64-bit integers as numbers.
std::string to_json_line(const google::protobuf::Message& message);

// Every line is flushed, so that a killed run has all its steps; a line that cannot be written is a warning, once, in
// the log and to `tell`, and the run goes on. What a file of an earlier run becomes is decided by the first event:
// after RESUMED the run goes on with it, without the steps and evaluations after the event's step and without torn
// lines; otherwise it is kept aside as steps.jsonl.old.
class JsonLinesObserver : public Observer {
 public:
  using Tell = std::function<void(const std::string& line)>;

  explicit JsonLinesObserver(const std::filesystem::path& run_dir, Tell tell = {});
  // Makes the file durable; says it where that fails.
  ~JsonLinesObserver() override;
  void on_step(const StepRecord& record) override;
  void on_evaluation(const EvaluationRecord& record) override;
  void on_event(const RunEvent& event) override;

 private:
  void open(std::optional<std::uint64_t> resumed_after);
  void write(const TelemetryLine& line);
  void warn(const char* action, int error);
  void warn(const std::string& text);
  const std::filesystem::path path_;
  const Tell tell_;
  bool opened_ = false;
  FILE* file_ = nullptr;
  bool warned_ = false;
};

}  // namespace ananke
