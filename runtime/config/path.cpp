#include "runtime/config/path.h"

#include <algorithm>
#include <charconv>
#include <span>

#include "ananke/job.pb.h"
#include "ananke/plugin.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/printable.h"

namespace ananke {
namespace {

namespace pb = google::protobuf;
using Tree = pb::TextFormat::ParseInfoTree;
constexpr std::size_t most_quoted = 200;  // bytes of a step, in messages

// A place on the way down: the tree of one message of the text, and the last line and column that were known.
struct Walk {
  const Tree* tree;
  const pb::Descriptor* descriptor;
  pb::TextFormat::ParseLocation at;

  // One step down; false where the text has nothing (more) there.
  bool step(const std::string& name, std::optional<int> index, const pb::Descriptor* inside_any = nullptr) {
    const pb::FieldDescriptor* field = descriptor->FindFieldByName(name);
    if (field == nullptr || tree == nullptr) return false;
    // A list written as [a, b] has one location.
    const int i = field->is_repeated() ? index.value_or(0) : -1;
    pb::TextFormat::ParseLocation here = tree->GetLocation(field, i);
    if (here.line < 0 && i > 0) here = tree->GetLocation(field, 0);
    if (here.line < 0) return false;
    at = here;
    if (field->message_type() == nullptr) return false;
    tree = tree->GetTreeForNested(field, i);
    descriptor = inside_any != nullptr ? inside_any : field->message_type();
    return true;
  }

  void follow(std::span<const PathStep> steps) {
    for (const PathStep& one : steps) {
      if (!step(one.name, one.index)) return;
    }
  }

  std::string place(const SourceText& source) const {
    return at.line < 0 ? source.name : fmt::format("{}:{}:{}", source.name, at.line + 1, at.column + 1);
  }
};

}  // namespace

std::string PathStep::text() const { return index ? fmt::format("{}[{}]", name, *index) : name; }

std::vector<PathStep> parse_path(const std::string& what, std::string_view path) {
  std::vector<PathStep> steps;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    std::string_view step = path.substr(begin, end - begin);
    PathStep result;
    if (const std::size_t bracket = step.find('['); bracket != std::string_view::npos) {
      const std::string_view digits = step.substr(bracket + 1);
      int index = -1;
      const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
      if (error != std::errc() || index < 0 || std::string_view(rest, digits.data() + digits.size()) != "]") {
        fail(ErrorKind::config,
             "{}: '{}' is no step of a path; an index is a whole number in brackets, as in optimizer[0]", what,
             printable(step, most_quoted));
      }
      result.index = index;
      step = step.substr(0, bracket);
    }
    result.name = step;
    const bool named = !step.empty() && std::all_of(step.begin(), step.end(),
                                                    [](unsigned char c) { return std::isalnum(c) || c == '_'; });
    if (!named) {
      fail(ErrorKind::config, "{}: '{}' is no step of a path; write names with dots between, as in model.hidden_size",
           what, printable(path.substr(begin, end - begin), most_quoted));
    }
    steps.push_back(std::move(result));
    begin = end + 1;
  }
  return steps;
}

int plugin_entry(const Job& job, const Schema& schema, std::string_view name) {
  for (int i = 0; i < job.plugins_size(); ++i) {
    const PluginUse& entry = job.plugins(i);
    const FoundPlugin* by_message = schema.plugin_of_message(message_of_url(entry.config().type_url()));
    if (entry.has_use() ? entry.use() == name : by_message != nullptr && by_message->note->name() == name) return i;
  }
  return -1;
}

std::string locate(const SourceText& source, const Schema& schema, const Job& job, const std::string& path) {
  const std::vector<PathStep> steps = parse_path(path, path);
  if (steps[0].name != "plugins" || steps[0].index || steps.size() == 1) return locate(source, Job::descriptor(), path);
  // plugins.NAME.field: through the entry's Any, whose tree has the fields of the plugin's message.
  Walk walk{source.tree.get(), Job::descriptor(), {}};
  const FoundPlugin* plugin = schema.plugin(steps[1].name);
  const pb::Descriptor* config = plugin != nullptr ? schema.config_of(*plugin) : nullptr;
  const int entry = plugin_entry(job, schema, steps[1].name);
  if (entry >= 0 && walk.step("plugins", entry) && walk.step("config", std::nullopt, config)) {
    walk.follow(std::span(steps).subspan(2));
  }
  return walk.place(source);
}

std::string locate(const SourceText& source, const pb::Descriptor* message, const std::string& path) {
  const std::vector<PathStep> steps = parse_path(path, path);
  Walk walk{source.tree.get(), message, {}};
  walk.follow(steps);
  return walk.place(source);
}

}  // namespace ananke
