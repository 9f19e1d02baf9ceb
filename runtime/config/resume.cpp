#include "runtime/config/resume.h"

#include <google/protobuf/text_format.h>

#include <algorithm>
#include <set>

#include "ananke/job.pb.h"
#include "ananke/options.pb.h"
#include "ananke/plugin.pb.h"
#include "runtime/base/error.h"
#include "runtime/config/job.h"
#include "runtime/config/schema.h"

namespace ananke {
namespace {

namespace pb = google::protobuf;
using pb::FieldDescriptor;

bool is_fixed(const FieldDescriptor* field) { return field->options().GetExtension(ananke::rule).fixed_on_resume(); }

// Whether the field or anything inside it is fixed: then it may not come or go either.
bool holds_fixed(const FieldDescriptor* field, std::set<const pb::Descriptor*> seen = {}) {
  if (is_fixed(field)) return true;
  const pb::Descriptor* message = field->message_type();
  if (message == nullptr || !seen.insert(message).second) return false;
  for (int i = 0; i < message->field_count(); ++i) {
    if (holds_fixed(message->field(i), seen)) return true;
  }
  return false;
}

class Comparison {
 public:
  explicit Comparison(const Schema& schema) : schema_(schema) {}
  void compare_jobs(const Job& before, const Job& after);
  std::vector<FieldChange> changes;

 private:
  void compare(const pb::Message& before, const pb::Message& after, const std::string& prefix);
  void compare_field(const pb::Message& before, const pb::Message& after, const FieldDescriptor* field,
                     const std::string& path);
  void compare_messages(const pb::Message& before, const pb::Message& after, const FieldDescriptor* field,
                        const std::string& path);
  void compare_config(const pb::Any& before, const pb::Any& after, const std::string& path);
  void compare_plugins(const Job& before, const Job& after);
  std::string text(const pb::Message& message, const FieldDescriptor* field, int index) const;
  std::string text(const pb::Message& message, const FieldDescriptor* field) const;

  const Schema& schema_;
};

std::string Comparison::text(const pb::Message& message, const FieldDescriptor* field, int index) const {
  pb::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  printer.SetExpandAny(true);
  printer.SetFinder(&schema_);
  std::string result;
  printer.PrintFieldValueToString(message, field, index, &result);
  while (!result.empty() && result.back() == ' ') result.pop_back();
  return field->message_type() != nullptr ? "{ " + result + " }" : result;
}

std::string Comparison::text(const pb::Message& message, const FieldDescriptor* field) const {
  if (!field->is_repeated()) return text(message, field, -1);
  std::string result;
  const int size = message.GetReflection()->FieldSize(message, field);
  for (int i = 0; i < size; ++i) result += (i > 0 ? ", " : "") + text(message, field, i);
  return "[" + result + "]";
}

void Comparison::compare_config(const pb::Any& before, const pb::Any& after, const std::string& path) {
  const std::string message = message_of_url(before.type_url());
  if (before.type_url() == after.type_url() && schema_.plugin_of_message(message) != nullptr) {
    compare(*schema_.unpack(before), *schema_.unpack(after), path);
  } else if (before.type_url() != after.type_url() || before.value() != after.value()) {
    changes.push_back({path, fmt::format("{} ({} bytes)", message, before.value().size()),
                       fmt::format("{} ({} bytes)", message_of_url(after.type_url()), after.value().size()), false});
  }
}

void Comparison::compare_messages(const pb::Message& before, const pb::Message& after, const FieldDescriptor* field,
                                  const std::string& path) {
  const pb::Reflection* r = before.GetReflection();
  if (!field->is_repeated()) {
    const bool was = r->HasField(before, field), is = r->HasField(after, field);
    if (was != is && holds_fixed(field)) {
      changes.push_back({path, was ? text(before, field) : "absent", is ? text(after, field) : "absent", true});
    } else if (was || is) {
      compare(r->GetMessage(before, field), r->GetMessage(after, field), path);
    }
    return;
  }
  const int old_size = r->FieldSize(before, field), new_size = r->FieldSize(after, field);
  for (int i = 0; i < std::max(old_size, new_size); ++i) {
    const std::string place = fmt::format("{}[{}]", path, i);
    if (i < old_size && i < new_size) {
      compare(r->GetRepeatedMessage(before, field, i), r->GetRepeatedMessage(after, field, i), place);
    } else {
      changes.push_back({place, i < old_size ? text(before, field, i) : "absent",
                         i < new_size ? text(after, field, i) : "absent", holds_fixed(field)});
    }
  }
}

void Comparison::compare_field(const pb::Message& before, const pb::Message& after, const FieldDescriptor* field,
                               const std::string& path) {
  if (field->message_type() != nullptr) return compare_messages(before, after, field, path);
  const std::string old_text = text(before, field), new_text = text(after, field);
  if (old_text != new_text) changes.push_back({path, old_text, new_text, is_fixed(field)});
}

void Comparison::compare(const pb::Message& before, const pb::Message& after, const std::string& prefix) {
  const pb::Descriptor* descriptor = before.GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    compare_field(before, after, descriptor->field(i), prefix + "." + descriptor->field(i)->name());
  }
}

// Plugins are compared by name, wherever they stand in the list.
void Comparison::compare_plugins(const Job& before, const Job& after) {
  const auto find = [](const Job& job, const std::string& name) -> const PluginUse* {
    for (const PluginUse& entry : job.plugins()) {
      if (entry.use() == name) return &entry;
    }
    return nullptr;
  };
  for (const PluginUse& entry : before.plugins()) {
    const std::string path = "plugins." + entry.use();
    if (const PluginUse* other = find(after, entry.use())) {
      compare_config(entry.config(), other->config(), path);
    } else {
      changes.push_back({path, "present", "absent", false});
    }
  }
  for (const PluginUse& entry : after.plugins()) {
    if (find(before, entry.use()) == nullptr) changes.push_back({"plugins." + entry.use(), "absent", "present", false});
  }
}

void Comparison::compare_jobs(const Job& before, const Job& after) {
  const pb::Descriptor* descriptor = Job::descriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    switch (field->number()) {
      case Job::kNameFieldNumber:
      case Job::kRunDirFieldNumber:
      case Job::kResolvedFieldNumber: break;
      case Job::kPluginsFieldNumber: compare_plugins(before, after); break;
      default: compare_field(before, after, field, field->name());
    }
  }
}

}  // namespace

std::string to_string(const FieldChange& change) {
  return fmt::format("{}: {} before, {} now", change.path, change.before, change.after);
}

std::vector<FieldChange> compare_for_resume(const Job& before, const Job& after, const Schema& schema) {
  Comparison comparison(schema);
  comparison.compare_jobs(before, after);
  return std::move(comparison.changes);
}

void check_resume(const std::vector<FieldChange>& changes, const Job& now) {
  std::string text;
  for (const FieldChange& change : changes) {
    if (change.refused)
      text += fmt::format("\n  {}: {} in the checkpoint, {} in the job", change.path, change.before, change.after);
  }
  if (text.empty()) return;
  fail(ErrorKind::config,
       "{}: the job cannot be resumed, since these fields cannot change:{}\nset them back, or start anew in "
       "another run_dir",
       now.resolved().source(), text);
}

std::vector<FieldChange> changes_of_resume(const Job& before, std::uint64_t step, const LoadedJob& now) {
  std::vector<FieldChange> changes = compare_for_resume(before, now.job, *now.schema);
  check_resume(changes, now.job);
  if (step > now.job.training().steps()) {
    fail(
        ErrorKind::config,
        "{}: the job cannot be resumed: the checkpoint is of step {}, past training.steps {}; raise training.steps, or "
        "start anew in another run_dir",
        now.job.resolved().source(), step, now.job.training().steps());
  }
  return changes;
}

}  // namespace ananke
