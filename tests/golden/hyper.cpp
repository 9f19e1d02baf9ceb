#include "tests/golden/hyper.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/util/json_util.h>

#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <set>

#include "ananke/plugin.pb.h"
#include "runtime/base/error.h"

namespace ananke::golden {
namespace {

// How torch carries the step out, and what describes the case: no part of the mathematics.
const std::set<std::string> not_ours = {"optimizer",  "newton_schulz",  "foreach",
                                        "capturable", "differentiable", "fused"};
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

void add_betas(const Json& betas, Fields& fields) {
  if (!betas.is(Json::Type::array) || betas.items().size() != 2) {
    fail(ErrorKind::data, "hyper.json: betas {} are not two numbers", betas.brief());
  }
  fields["beta1"] = as_text(betas.items()[0]);
  fields["beta2"] = as_text(betas.items()[1]);
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
    if (key == "betas") {
      add_betas(value, fields);
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
