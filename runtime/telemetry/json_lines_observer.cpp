#include "runtime/telemetry/json_lines_observer.h"

#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>

#include "ananke/telemetry.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"

namespace ananke {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      result += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      result += c;
    }
  }
  return result + '"';
}

std::string number(double value) {
  if (std::isfinite(value)) return fmt::format("{}", value);  // shortest that reads back as the same double
  return std::isnan(value) ? "\"NaN\"" : value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
}

[[noreturn]] void refuse(const FieldDescriptor* field) {
  fail(ErrorKind::internal, "telemetry field {} has a type that no line of JSON was made for", field->full_name());
}

std::string element_of(const Message& message, const FieldDescriptor* field, int index) {
  const auto* reflection = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32: return std::to_string(reflection->GetRepeatedUInt32(message, field, index));
    case FieldDescriptor::CPPTYPE_DOUBLE: return number(reflection->GetRepeatedDouble(message, field, index));
    case FieldDescriptor::CPPTYPE_STRING: return quoted(reflection->GetRepeatedString(message, field, index));
    case FieldDescriptor::CPPTYPE_MESSAGE: return to_json_line(reflection->GetRepeatedMessage(message, field, index));
    default: refuse(field);
  }
}

std::string list_of(const Message& message, const FieldDescriptor* field) {
  std::string text;
  for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i) {
    text += (i > 0 ? "," : "") + element_of(message, field, i);
  }
  return "[" + text + "]";
}

std::string value_of(const Message& message, const FieldDescriptor* field) {
  const auto* reflection = message.GetReflection();
  if (field->is_repeated()) return list_of(message, field);
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32: return std::to_string(reflection->GetUInt32(message, field));
    case FieldDescriptor::CPPTYPE_UINT64: return std::to_string(reflection->GetUInt64(message, field));
    case FieldDescriptor::CPPTYPE_DOUBLE: return number(reflection->GetDouble(message, field));
    case FieldDescriptor::CPPTYPE_BOOL: return reflection->GetBool(message, field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_STRING: return quoted(reflection->GetString(message, field));
    case FieldDescriptor::CPPTYPE_ENUM: return quoted(reflection->GetEnum(message, field)->name());
    case FieldDescriptor::CPPTYPE_MESSAGE: return to_json_line(reflection->GetMessage(message, field));
    default: refuse(field);
  }
}

// Whether a line of an earlier run still holds when the run goes on after step `last`.
bool stays(const std::string& text, std::uint64_t last) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  TelemetryLine line;
  if (!google::protobuf::util::JsonStringToMessage(text, &line, options).ok()) return false;
  switch (line.kind_case()) {
    case TelemetryLine::kStep: return line.step().step() <= last;
    case TelemetryLine::kEvaluation: return line.evaluation().step() <= last;
    case TelemetryLine::kEvent: return true;
    case TelemetryLine::KIND_NOT_SET: return false;
  }
  return false;
}

// Rewrites the file under a temporary name, so that a kill meanwhile loses nothing.
void drop_after(const std::filesystem::path& path, std::uint64_t last) {
  std::ifstream old(path);
  if (!old) return;
  auto temporary = path;
  temporary += ".tmp";
  std::ofstream kept(temporary, std::ios::trunc);
  for (std::string line; std::getline(old, line);) {
    if (stays(line, last)) kept << line << '\n';
  }
  kept.close();
  if (!kept) throw std::filesystem::filesystem_error("write", temporary, std::make_error_code(std::errc(errno)));
  std::filesystem::rename(temporary, path);
}

}  // namespace

std::string to_json_line(const Message& message) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  std::string text;
  for (const FieldDescriptor* field : fields) {
    text += fmt::format("{}\"{}\":{}", text.empty() ? "" : ",", field->name(), value_of(message, field));
  }
  return "{" + text + "}";
}

JsonLinesObserver::JsonLinesObserver(const std::filesystem::path& run_dir, Tell tell)
    : path_(run_dir / "steps.jsonl"), tell_(std::move(tell)) {}

JsonLinesObserver::~JsonLinesObserver() {
  if (file_ == nullptr) return;
  // Some network file systems tell of a full disk or quota only here.
  if (::fsync(::fileno(file_)) != 0) warn("sync", errno);
  if (std::fclose(file_) != 0) warn("close", errno);
}

void JsonLinesObserver::open(std::optional<std::uint64_t> resumed_after) {
  if (std::exchange(opened_, true)) return;
  try {
    if (resumed_after) {
      drop_after(path_, *resumed_after);
    } else if (std::filesystem::exists(path_)) {
      std::filesystem::rename(path_, path_.string() + ".old");
    }
  } catch (const std::exception& error) {
    warn(fmt::format("{} keeps lines of an earlier run: {}", path_.string(), error.what()));
  }
  file_ = std::fopen(path_.c_str(), "ae");
  if (!file_) warn("open", errno);
}

void JsonLinesObserver::on_step(const StepRecord& record) {
  TelemetryLine line;
  *line.mutable_step() = record;
  write(line);
}

void JsonLinesObserver::on_evaluation(const EvaluationRecord& record) {
  TelemetryLine line;
  *line.mutable_evaluation() = record;
  write(line);
}

void JsonLinesObserver::on_event(const RunEvent& event) {
  if (event.kind() == RunEvent::RESUMED) open(event.step());
  TelemetryLine line;
  *line.mutable_event() = event;
  write(line);
}

void JsonLinesObserver::write(const TelemetryLine& line) {
  open(std::nullopt);
  if (!file_) return;
  const std::string text = to_json_line(line) + "\n";
  if (std::fwrite(text.data(), 1, text.size(), file_) == text.size() && std::fflush(file_) == 0) return;
  warn("write", errno);
  std::clearerr(file_);  // the next line is tried again: the disk may have room by then
}

void JsonLinesObserver::warn(const char* action, int error) {
  if (warned_) return;
  warned_ = true;
  warn(fmt::format("cannot {} {}: {}; the run itself is not affected, its records may have gaps", action,
                   path_.string(), std::strerror(error)));
}

void JsonLinesObserver::warn(const std::string& text) {
  log_warning("{}", text);
  if (tell_) tell_("warning: " + text);
}

}  // namespace ananke
