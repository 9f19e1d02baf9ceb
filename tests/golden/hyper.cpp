#include "tests/golden/hyper.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/util/json_util.h>

#include <cctype>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "ananke/plugin.pb.h"
#include "runtime/base/error.h"

namespace ananke::golden {
namespace {

// How torch carries the step out, and what describes the case: no part of the mathematics.
const std::set<std::string> not_ours = {"optimizer", "foreach", "capturable", "differentiable", "fused"};
// What every plugin does in one way only.
const std::map<std::string, bool> fixed = {{"amsgrad", false}, {"maximize", false}, {"decoupled_weight_decay", true}};

std::string as_text(const Json& value) {
  if (value.is(Json::Type::string)) return json_quoted(value.text());
  if (!value.is(Json::Type::array)) return value.text();
  std::string text;
  for (const Json& item : value.items()) text += (text.empty() ? "" : ",") + as_text(item);
  return "[" + text + "]";
}

using Fields = std::map<std::string, std::string>;  // plugin's field to its value as JSON

// What torch gives as a list and a plugin in fields of their own.
const std::map<std::string, std::vector<std::string>> lists = {{"betas", {"beta1", "beta2"}},
                                                               {"ns_coefficients", {"ns_a", "ns_b", "ns_c"}}};

void add_list(const std::string& key, const Json& values, const std::vector<std::string>& names, Fields& fields) {
  if (!values.is(Json::Type::array) || values.items().size() != names.size()) {
    fail(ErrorKind::data, "hyper.json: {} {} are not {} numbers", key, values.brief(), names.size());
  }
  for (std::size_t i = 0; i < names.size(); ++i) fields[names[i]] = as_text(values.items()[i]);
}

// The name of an enum's value, as protobuf writes it: "match_rms_adamw" is MATCH_RMS_ADAMW.
std::string as_enum(const std::string& key, const Json& value) {
  if (!value.is(Json::Type::string)) fail(ErrorKind::data, "hyper.json: {} {} is no name", key, value.brief());
  std::string name = value.text();
  // The recorded precision is torch's; with float64 the case is made for the most exact that a plugin offers.
  if (key == "newton_schulz" && name == "float64") name = "float32";
  for (char& letter : name) letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  return json_quoted(name);
}

// hyper.json in the plugin's field names.
Fields translate(const Json& hyper) {
  Fields fields;
  for (const auto& [key, value] : hyper.members()) {
    if (not_ours.count(key) || value.is(Json::Type::null)) continue;
    if (const auto only = fixed.find(key); only != fixed.end()) {
      if (value.is(Json::Type::boolean) && value.boolean() == only->second) continue;
      fail(ErrorKind::data, "hyper.json: {} must be {}; other values are not offered", key, only->second);
    }
    if (const auto list = lists.find(key); list != lists.end()) {
      add_list(key, value, list->second, fields);
    } else if (key == "adjust_lr_fn" || key == "newton_schulz") {
      fields[key] = as_enum(key, value);
    } else {
      fields[key] = as_text(value);
    }
  }
  return fields;
}

}  // namespace

Json read_hyper(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "hyper.json";
  std::ifstream in(file, std::ios::binary);
  if (!in) fail(ErrorKind::data, "{}: cannot be opened", file.string());
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  Json hyper = Json::parse(text, file.string());
  if (!hyper.is(Json::Type::object)) fail(ErrorKind::data, "{}: is no JSON object", file.string());
  return hyper;
}

std::string make_config(const Json& hyper, const PluginNote& note) {
  google::protobuf::DescriptorPool pool;
  for (const auto& file : note.files().file()) {
    if (!pool.BuildFile(file)) fail(ErrorKind::data, "plugin {}: {} does not build", note.name(), file.name());
  }
  const auto* descriptor = pool.FindMessageTypeByName(note.config_message());
  if (!descriptor) fail(ErrorKind::data, "plugin {}: no message {}", note.name(), note.config_message());
  std::string json;
  for (const auto& [key, value] : translate(hyper)) {
    if (!descriptor->FindFieldByName(key)) {
      fail(ErrorKind::data, "hyper.json: {} is unknown to plugin {}; {} has no such field", key, note.name(),
           descriptor->full_name());
    }
    json += (json.empty() ? "" : ",") + json_quoted(key) + ":" + value;
  }
  google::protobuf::DynamicMessageFactory factory(&pool);
  const std::unique_ptr<google::protobuf::Message> message(factory.GetPrototype(descriptor)->New());
  const auto status = google::protobuf::util::JsonStringToMessage("{" + json + "}", message.get());
  if (!status.ok()) fail(ErrorKind::data, "hyper.json as {}: {}", descriptor->full_name(), status.ToString());
  return message->SerializeAsString();
}

}  // namespace ananke::golden
