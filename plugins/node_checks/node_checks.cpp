// Check plugin "node_checks": the built-in ones.
#include "plugins/node_checks/node_checks.h"

#include <algorithm>

#include "runtime/base/kernel_text.h"
#include "runtime/base/printable.h"
#include "runtime/base/read_file.h"
#include "runtime/plugin/descriptor.h"

namespace ananke {
namespace node_checks {

namespace fs = std::filesystem;

std::optional<std::string> line_of(const fs::path& file) {
  std::optional<std::string> text = read_file(file);
  if (!text) return std::nullopt;
  const auto begin = text->find_first_not_of(" \t\n");
  if (begin == std::string::npos) return "";
  return text->substr(begin, text->find_last_not_of(" \t\n") - begin + 1);
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code none;
  for (fs::directory_iterator entry(folder, none), end; !none && entry != end; entry.increment(none)) {
    names.push_back(entry->path().filename());
  }
  std::ranges::sort(names);
  return names;
}

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

std::string describe_process(const fs::path& root, unsigned process) {
  const fs::path folder = root / "proc" / std::to_string(process);
  const std::optional<std::string> name = line_of(folder / "comm");
  const std::optional<std::string> status = read_file(folder / "status");
  std::string text = fmt::format("process {}", process);
  if (!name && !status) return text + " (which is not to be seen from here: of another container, or gone)";
  if (name) text += fmt::format(" ({})", printable(*name));
  const auto user = status ? status->find("\nUid:") : std::string::npos;
  if (user == std::string::npos) return text;
  const auto begin = status->find_first_of("0123456789", user);
  return text + " of user " + status->substr(begin, status->find_first_not_of("0123456789", begin) - begin);
}

class NodeChecks final : public Check {
 public:
  explicit NodeChecks(const RoleContext& context) {
    for (auto* make : {memory_checks, gpu_checks, network_checks, file_checks, quota_checks, system_checks}) {
      for (NodeCheck& check : make(context.site)) checks_.push_back(std::move(check));
    }
  }

  std::vector<CheckSpec> checks() const override {
    std::vector<CheckSpec> specs;
    for (const NodeCheck& check : checks_) specs.push_back(check.spec);
    return specs;
  }

  CheckResult run(const std::string& id, const CheckContext& context) override {
    const auto check = std::ranges::find(checks_, id, [](const NodeCheck& one) { return one.spec.id; });
    ANANKE_CHECK(check != checks_.end(), "there is no check '{}'", id);
    return check->run(context);
  }

 private:
  std::vector<NodeCheck> checks_;
};

}  // namespace node_checks

ANANKE_PLUGIN(Check, node_checks::NodeChecks);

}  // namespace ananke
