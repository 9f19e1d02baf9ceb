#include "runtime/config/text.h"

#include <fmt/ranges.h>
#include <google/protobuf/empty.pb.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <set>

#include "ananke/plugin.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/nearest.h"
#include "runtime/base/printable.h"

namespace ananke {
namespace {

namespace pb = google::protobuf;

constexpr std::size_t most_quoted = 200;  // bytes of a name that is not known, in messages

struct Complaint {
  int line = -1;  // from 0; -1: unknown
  int column = -1;
  std::string text;
};

// Keeps the first error: what follows is mostly a consequence. Warnings tell of what was skipped.
class Complaints final : public pb::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& text) override {
    if (!first) first = Complaint{line, column, text};
  }
  void AddWarning(int line, int column, const std::string& text) override { skipped.push_back({line, column, text}); }
  Complaint error() const { return first.value_or(Complaint{0, 0, "it is no text format"}); }
  std::optional<Complaint> first;
  std::vector<Complaint> skipped;
};

// Lets every message type through without looking inside.
class AnyMessage final : public pb::TextFormat::Finder {
  const pb::Descriptor* FindAnyType(const pb::Message&, const std::string&, const std::string&) const override {
    return pb::Empty::descriptor();
  }
};

// The same only for types that the schema does not know.
class KnownMessage final : public pb::TextFormat::Finder {
 public:
  explicit KnownMessage(const Schema& schema) : schema_(schema) {}
  const pb::Descriptor* FindAnyType(const pb::Message& message, const std::string& prefix,
                                    const std::string& name) const override {
    const pb::Descriptor* known = schema_.FindAnyType(message, prefix, name);
    return known != nullptr ? known : pb::Empty::descriptor();
  }

 private:
  const Schema& schema_;
};

// Message types reachable from `root` and from the plugins' configs, by full name.
void collect_messages(const pb::Descriptor* root, std::set<const pb::Descriptor*>* all) {
  if (root == nullptr || !all->insert(root).second) return;
  for (int i = 0; i < root->field_count(); ++i) collect_messages(root->field(i)->message_type(), all);
}

std::set<const pb::Descriptor*> known_messages(const pb::Descriptor* root, const Schema& schema) {
  std::set<const pb::Descriptor*> all;
  collect_messages(root, &all);
  for (const FoundPlugin& plugin : schema.plugins()) collect_messages(schema.config_of(plugin), &all);
  return all;
}

std::string unknown_field(const std::string& message, const std::string& field,
                          const std::set<const pb::Descriptor*>& known) {
  for (const pb::Descriptor* candidate : known) {
    if (candidate->full_name() == message) return no_such_field(candidate, field);
  }
  return fmt::format("message {} has no field '{}'", message, printable(field, most_quoted));
}

std::string unknown_value(const std::string& value, const std::string& field,
                          const std::set<const pb::Descriptor*>& known) {
  std::vector<std::string> names;
  for (const pb::Descriptor* candidate : known) {
    const pb::FieldDescriptor* found = candidate->FindFieldByName(field);
    if (found == nullptr || found->enum_type() == nullptr) continue;
    for (const std::string& name : value_names(found->enum_type())) names.push_back(name);
  }
  return fmt::format("field '{}' has no value '{}'{}", field, printable(value, most_quoted), suggestion(value, names));
}

std::string unknown_config(const std::string& url, const Schema& schema) {
  const std::string message = message_of_url(url);
  std::vector<std::string> names;
  for (const FoundPlugin& plugin : schema.plugins()) {
    if (!plugin.note->config_message().empty()) names.push_back(plugin.note->config_message());
  }
  for (const RefusedPlugin& plugin : schema.refused()) {
    if (plugin.message != message) continue;
    return fmt::format("the plugin with the config message '{}' was found but refused: {}", message, plugin.reason);
  }
  const std::string refused =
      schema.refused().empty() ? "" : fmt::format(", and {} files it refuses", schema.refused().size());
  return fmt::format("no plugin at hand has the config message '{}'{} (`ananke plugins` lists them{})",
                     printable(message, most_quoted), suggestion(message, names), refused);
}

// What stands at each * of the form, up to the next quotation mark; nothing where the text is of another form.
// (std::regex goes down the stack with every character, and names may be as long as a file.)
std::vector<std::string> names_in(std::string_view text, std::string_view form) {
  std::vector<std::string> names;
  for (std::size_t star = 0; (star = form.find('*')) != std::string_view::npos;) {
    if (!text.starts_with(form.substr(0, star))) return {};
    text.remove_prefix(star);
    form.remove_prefix(star + 1);
    names.emplace_back(text.substr(0, text.find('"')));
    text.remove_prefix(names.back().size());
  }
  return text == form ? names : std::vector<std::string>();
}

// What a person would say instead of the parser's own words; the wrong word, where the parser points behind it.
std::string explain(const std::string& complaint, const pb::Descriptor* root, const Schema& schema, std::string* word) {
  if (const auto names = names_in(complaint, R"(Message type "*" has no field named "*".)"); !names.empty()) {
    *word = names[1];
    return unknown_field(names[0], names[1], known_messages(root, schema));
  }
  if (const auto names = names_in(complaint, R"(Unknown enumeration value of "*" for field "*".)"); !names.empty()) {
    *word = names[0];
    return unknown_value(names[0], names[1], known_messages(root, schema));
  }
  if (const auto names = names_in(complaint, R"(Could not find type "*" stored in google.protobuf.Any.)");
      !names.empty()) {
    *word = message_of_url(names[0]);
    return unknown_config(names[0], schema);
  }
  if (const auto names = names_in(complaint, R"(Non-repeated field "*" is specified multiple times.)");
      !names.empty()) {
    *word = names[0];
    return fmt::format("field '{}' stands here a second time; keep one", names[0]);
  }
  std::string text = complaint;
  if (!text.empty()) text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  while (!text.empty() && text.back() == '.') text.pop_back();
  return text;
}

std::string line_of(const std::string& text, int line) {
  std::size_t begin = 0;
  for (int i = 0; i < line; ++i) {
    begin = text.find('\n', begin);
    if (begin == std::string::npos) return "";
    ++begin;
  }
  return text.substr(begin, text.find('\n', begin) - begin);
}

// "12:5", and the line itself. The parser points at the token behind a wrong name: go back to the name, which may stand
// on a line before.
std::string place_of(const SourceText& source, Complaint at, const std::string& word) {
  for (int line = at.line; !word.empty() && line >= 0 && line > at.line - 3; --line) {
    const std::string text = line_of(source.text, line);
    const std::size_t before = line == at.line ? static_cast<std::size_t>(at.column) : text.size();
    const std::size_t found = text.rfind(word, before);
    if (found == std::string::npos || text.find('\t') < found) continue;
    at = {line, static_cast<int>(found), ""};
    break;
  }
  return fmt::format("{}:{}", at.line + 1, at.column + 1);
}

// What was found, with its place and the line that it is about.
std::string with_place(const SourceText& source, const Complaint& at, const std::string& text,
                       const std::string& word = "") {
  std::string quoted = line_of(source.text, at.line);
  quoted.erase(0, quoted.find_first_not_of(" \t"));
  return fmt::format("{}:{}: {}{}", source.name, place_of(source, at, word), text,
                     quoted.empty() || quoted.size() > 120 ? "" : fmt::format(" (in: {})", quoted));
}

std::string sentence(const SourceText& source, const Complaint& at, const pb::Descriptor* root, const Schema& schema) {
  std::string word;
  const std::string text = explain(at.text, root, schema, &word);
  return with_place(source, at, text, word);
}

// A message made of bytes may have fields that its type has not. Printed they stand as numbers, which no job may hold.
bool reads_back(const pb::Message& message, const Schema& schema) {
  std::string text;
  Complaints ignored;
  pb::TextFormat::Parser parser;
  parser.RecordErrorsTo(&ignored);
  parser.AllowPartialMessage(true);
  const std::unique_ptr<pb::Message> again = schema.make(message.GetDescriptor());
  return pb::TextFormat::PrintToString(message, &text) && parser.ParseFromString(text, again.get()) &&
         again->SerializePartialAsString() == message.SerializePartialAsString();
}

// What is wrong with a config; empty: nothing is. Written as [ananke/NAME] { } it has been read by the parser, which
// takes type_url and value as they stand.
std::string why_no_config(const pb::Any& config, const Schema& schema, bool unknown_passes) {
  const std::string& url = config.type_url();
  if (url.empty()) {
    return config.value().empty() ? "" : "a config has a value and no type_url; write [ananke/NAME] { } instead";
  }
  if (schema.plugin_of_message(message_of_url(url)) == nullptr)
    return unknown_passes ? "" : unknown_config(url, schema);
  if (const std::string right = type_url(message_of_url(url)); url != right) {  // others may not read back when printed
    return fmt::format("a config's type_url is '{}'; write [{}] {{ }}", printable(url, most_quoted), right);
  }
  try {
    if (reads_back(*schema.unpack(config), schema)) return "";
    return fmt::format("its {} bytes hold more than fields of {}; write its fields: [{}] {{ }}", config.value().size(),
                       message_of_url(url), url);
  } catch (const Error& error) {
    return fmt::format("{}; write its fields: [{}] {{ }}", error.what(), url);
  }
}

// Goes down with the tree of the text (null: without places) to the first config that nothing could be made of. An Any
// in a plugin's own message is not opened, here and elsewhere.
std::optional<Complaint> find_bad_config(const pb::Message& message, const pb::TextFormat::ParseInfoTree* tree,
                                         const Schema& schema, bool unknown_passes) {
  const pb::Reflection* r = message.GetReflection();
  std::vector<const pb::FieldDescriptor*> fields;
  r->ListFields(message, &fields);
  for (const pb::FieldDescriptor* field : fields) {
    if (field->message_type() == nullptr) continue;
    for (int i = 0; i < (field->is_repeated() ? r->FieldSize(message, field) : 1); ++i) {
      const pb::Message& inner =
          field->is_repeated() ? r->GetRepeatedMessage(message, field, i) : r->GetMessage(message, field);
      const int index = field->is_repeated() ? i : -1;
      if (const auto* config = dynamic_cast<const pb::Any*>(&inner)) {
        const std::string wrong = why_no_config(*config, schema, unknown_passes);
        if (wrong.empty()) continue;
        const auto at = tree != nullptr ? tree->GetLocation(field, index) : pb::TextFormat::ParseLocation(0, 0);
        return Complaint{std::max(at.line, 0), std::max(at.column, 0), wrong};
      }
      const auto* below = tree != nullptr ? tree->GetTreeForNested(field, index) : nullptr;
      if (auto found = find_bad_config(inner, below, schema, unknown_passes)) return found;
    }
  }
  return std::nullopt;
}

bool run_parser(const std::string& text, const pb::TextFormat::Finder* finder, bool skip_unknown, pb::Message* message,
                pb::TextFormat::ParseInfoTree* tree, Complaints* complaint) {
  pb::TextFormat::Parser parser;
  parser.RecordErrorsTo(complaint);
  parser.SetFinder(finder);
  parser.AllowUnknownField(skip_unknown);
  parser.SetRecursionLimit(100);  // the default has no limit but the stack
  if (tree != nullptr) parser.WriteLocationsTo(tree);
  pb::io::ArrayInputStream stream(text.data(), static_cast<int>(text.size()));
  return parser.Parse(&stream, message);
}

}  // namespace

SourceText read_source(const std::filesystem::path& file) {
  constexpr std::size_t largest = 16u << 20;
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::exists(status)) fail(ErrorKind::config, "{} does not exist", file.string());
  if (std::filesystem::is_directory(status)) fail(ErrorKind::config, "{} is a folder, not a text file", file.string());
  std::ifstream stream(file, std::ios::binary);
  if (!stream) fail(ErrorKind::config, "{} cannot be read: {}", file.string(), std::strerror(errno));
  std::string text;
  for (char piece[4096]; text.size() <= largest && stream.good();) {
    stream.read(piece, sizeof(piece));
    text.append(piece, static_cast<std::size_t>(stream.gcount()));
  }
  if (stream.bad()) fail(ErrorKind::config, "{} cannot be read: {}", file.string(), std::strerror(errno));
  if (text.size() > largest) {
    fail(ErrorKind::config, "{} is no job or site: it has more than {} bytes", file.string(), largest);
  }
  return {file.string(), std::move(text), nullptr};
}

void parse_text(SourceText& source, const Schema& schema, Reading reading, pb::Message* message) {
  const AnyMessage any_message;
  const bool tolerant = reading == Reading::tolerant;
  const pb::TextFormat::Finder* finder = &schema;
  if (tolerant) finder = &any_message;
  source.tree = std::make_unique<pb::TextFormat::ParseInfoTree>();
  Complaints complaints;
  if (!run_parser(source.text, finder, tolerant, message, source.tree.get(), &complaints)) {
    fail(ErrorKind::config, "{}", sentence(source, complaints.error(), message->GetDescriptor(), schema));
  }
  if (tolerant) return;
  const auto bad = find_bad_config(*message, source.tree.get(), schema, false);
  if (bad) fail(ErrorKind::config, "{}", with_place(source, *bad, bad->text));
}

std::vector<std::string> parse_known(SourceText& source, const Schema& schema, pb::Message* message) {
  const KnownMessage finder(schema);
  Complaints complaints;
  source.tree = std::make_unique<pb::TextFormat::ParseInfoTree>();
  if (!run_parser(source.text, &finder, true, message, source.tree.get(), &complaints)) {
    fail(ErrorKind::config, "{}", sentence(source, complaints.error(), message->GetDescriptor(), schema));
  }
  const auto bad = find_bad_config(*message, source.tree.get(), schema, true);
  if (bad) fail(ErrorKind::config, "{}", with_place(source, *bad, bad->text));
  std::vector<std::string> skipped;
  for (const Complaint& one : complaints.skipped) {
    if (one.text.find(pb::Empty::descriptor()->full_name()) != std::string::npos) continue;
    skipped.push_back(sentence(source, one, message->GetDescriptor(), schema));
  }
  return skipped;
}

void parse_piece(const std::string& what, const std::string& text, const Schema& schema, pb::Message* message) {
  Complaints complaints;
  if (!run_parser(text, &schema, false, message, nullptr, &complaints)) {
    std::string word;
    fail(ErrorKind::config, "{}: {}", what, explain(complaints.error().text, message->GetDescriptor(), schema, &word));
  }
  const auto bad = find_bad_config(*message, nullptr, schema, false);
  if (bad) fail(ErrorKind::config, "{}: {}", what, bad->text);
}

std::string print_text(const pb::Message& message, const Schema& schema) {
  pb::TextFormat::Printer printer;
  printer.SetExpandAny(true);
  printer.SetFinder(&schema);
  printer.SetUseShortRepeatedPrimitives(true);
  printer.SetUseUtf8StringEscaping(true);
  std::string text;
  printer.PrintToString(message, &text);
  return text;
}

}  // namespace ananke
