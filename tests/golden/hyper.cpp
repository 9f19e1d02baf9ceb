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

using google::protobuf::Struct;
using google::protobuf::Value;

// How torch carries the step out, and what describes the case: no part of the mathematics.
const std::set<std::string> not_ours = {"optimizer",  "newton_schulz",  "foreach",
                                        "capturable", "differentiable", "fused"};
// What every plugin does in one way only.
const std::map<std::string, bool> fixed = {{"amsgrad", false}, {"maximize", false}, {"decoupled_weight_decay", true}};

void add_betas(const Value& betas, Struct& config) {
  if (betas.list_value().values_size() != 2) {
    fail(ErrorKind::data, "hyper.json: betas {} are not two numbers", betas.ShortDebugString());
  }
  (*config.mutable_fields())["beta1"] = betas.list_value().values(0);
  (*config.mutable_fields())["beta2"] = betas.list_value().values(1);
}

// hyper.json in the plugin's field names.
Struct translate(const Struct& hyper) {
  Struct config;
  for (const auto& [key, value] : hyper.fields()) {
    if (not_ours.count(key) || value.kind_case() == Value::kNullValue) continue;
    if (const auto only = fixed.find(key); only != fixed.end()) {
      if (value.kind_case() == Value::kBoolValue && value.bool_value() == only->second) continue;
      fail(ErrorKind::data, "hyper.json: {} must be {}; other values are not offered", key, only->second);
    }
    if (key == "betas") {
      add_betas(value, config);
    } else {
      (*config.mutable_fields())[key] = value;
    }
  }
  return config;
}

}  // namespace

Struct read_hyper(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "hyper.json";
  std::ifstream in(file, std::ios::binary);
  if (!in) fail(ErrorKind::data, "{}: cannot be opened", file.string());
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  Struct hyper;
  const auto status = google::protobuf::util::JsonStringToMessage(text, &hyper);
  if (!status.ok()) fail(ErrorKind::data, "{}: {}", file.string(), status.ToString());
  return hyper;
}

std::string make_config(const Struct& hyper, const PluginNote& note) {
  google::protobuf::DescriptorPool pool;
  for (const auto& file : note.files().file()) {
    if (!pool.BuildFile(file)) fail(ErrorKind::data, "plugin {}: {} does not build", note.name(), file.name());
  }
  const auto* descriptor = pool.FindMessageTypeByName(note.config_message());
  if (!descriptor) fail(ErrorKind::data, "plugin {}: no message {}", note.name(), note.config_message());
  const Struct config = translate(hyper);
  for (const auto& [key, value] : config.fields()) {
    if (!descriptor->FindFieldByName(key)) {
      fail(ErrorKind::data, "hyper.json: {} is unknown to plugin {}; {} has no such field", key, note.name(),
           descriptor->full_name());
    }
  }
  std::string json;
  google::protobuf::DynamicMessageFactory factory(&pool);
  const std::unique_ptr<google::protobuf::Message> message(factory.GetPrototype(descriptor)->New());
  auto status = google::protobuf::util::MessageToJsonString(config, &json);
  if (status.ok()) status = google::protobuf::util::JsonStringToMessage(json, message.get());
  if (!status.ok()) fail(ErrorKind::data, "hyper.json as {}: {}", descriptor->full_name(), status.ToString());
  return message->SerializeAsString();
}

}  // namespace ananke::golden
