// Built-in observer: steps.jsonl in the run folder, one TelemetryLine (proto/ananke/telemetry.proto) per line.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
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

// Every line is flushed, so that a killed run has all its steps; a line that cannot be written is a warning, once, and
// the run goes on. A fresh run (no `resume_after`) keeps what an earlier one left as steps.jsonl.old; a resumed one
// goes on with the file, without the steps and evaluations after `resume_after` and without torn lines.
class JsonLinesObserver : public Observer {
 public:
  JsonLinesObserver(std::filesystem::path file, std::optional<std::uint64_t> resume_after);
  void on_step(const StepRecord& record) override;
  void on_evaluation(const EvaluationRecord& record) override;
  void on_event(const RunEvent& event) override;

 private:
  void write(const TelemetryLine& line);
  void warn(const char* action, int error);
  std::filesystem::path path_;
  std::unique_ptr<FILE, int (*)(FILE*)> file_;
  bool warned_ = false;
};

}  // namespace ananke
