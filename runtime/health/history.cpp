#include "runtime/health/history.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "runtime/base/error.h"
#include "runtime/base/replace_file.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t most_kept = 64;

fs::path file_of(const fs::path& folder, const std::string& node) {
  if (node.empty() || node.find('/') != std::string::npos || node[0] == '.') {
    fail(ErrorKind::config, "'{}' is no name of a node, so it has no history", node);
  }
  return folder / (node + ".jsonl");
}

}  // namespace

std::vector<NodeHealth> read_history(const fs::path& folder, const std::string& node) {
  std::vector<NodeHealth> history;
  std::ifstream lines(file_of(folder, node));
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  for (std::string line; std::getline(lines, line);) {
    NodeHealth one;
    if (google::protobuf::util::JsonStringToMessage(line, &one, options).ok()) history.push_back(std::move(one));
  }
  return history;
}

const NodeHealth* since_boot(const std::vector<NodeHealth>& history, const std::string& boot) {
  if (boot.empty() || history.empty() || history.back().boot() != boot) return nullptr;
  return &history.back();
}

void add_to_history(const fs::path& folder, const NodeHealth& node) {
  const fs::path file = file_of(folder, node.node());
  std::error_code error;
  fs::create_directories(folder, error);
  NodeHealth kept;
  kept.set_node(node.node());
  kept.set_boot(node.boot());
  kept.set_time(node.time());
  for (const CheckResult& check : node.check()) {
    CheckResult one;
    for (const HealthValue& value : check.value()) {
      const bool compared = value.compare() == HealthValue::HIGHER || value.compare() == HealthValue::LOWER ||
                            value.compare() == HealthValue::COUNTER;
      if (compared) *one.add_value() = value;
    }
    if (one.value_size() == 0) continue;
    one.set_id(check.id());
    *kept.add_check() = std::move(one);
  }
  std::vector<std::string> lines;
  {
    std::ifstream before(file);
    for (std::string line; std::getline(before, line);) lines.push_back(line);
  }
  if (lines.size() >= most_kept) lines.erase(lines.begin(), lines.end() - (most_kept - 1));
  std::string text;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  if (!google::protobuf::util::MessageToJsonString(kept, &text, options).ok()) {
    fail(ErrorKind::internal, "the health of {} cannot be written as JSON", node.node());
  }
  ReplacedFile replaced(file);
  std::ofstream out(replaced.partial(), std::ios::trunc);
  for (const std::string& line : lines) out << line << '\n';
  out << text << '\n';
  out.close();
  if (!out)
    fail(ErrorKind::resource, "cannot write {}: {}; see health.history of the site", file.string(),
         std::strerror(errno));
  replaced.commit();
}

}  // namespace ananke
