// Limits of blocks and inodes, by the site's own command: `df` does not show those of a user or a project.
#include "plugins/node_checks/quotas.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "ananke/site.pb.h"
#include "plugins/node_checks/node_checks.h"
#include "runtime/base/descriptor.h"
#include "runtime/base/json.h"
#include "runtime/base/units.h"

namespace ananke::node_checks {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t most_said = 1 << 20;

// What a shell's command prints. It ends with this process, which the check's deadline ends. Variables that are not set
// are an error of the shell's.
std::string said_by(const std::string& command) {
  Pipe output;
  const pid_t process = fork();
  if (process < 0) fail(ErrorKind::resource, "cannot start `{}`: {}", command, std::strerror(errno));
  if (process == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(output.write.get(), STDOUT_FILENO);
    dup2(open("/dev/null", O_RDWR), STDIN_FILENO);
    execl("/bin/sh", "sh", "-uc", command.c_str(), nullptr);
    _exit(127);
  }
  output.write.close();
  std::string text(most_said, '\0');
  std::size_t size = 0;
  for (ssize_t got = 1; got > 0 && size < most_said; size += static_cast<std::size_t>(std::max<ssize_t>(got, 0))) {
    do got = read(output.read.get(), text.data() + size, most_said - size);
    while (got < 0 && errno == EINTR);
  }
  text.resize(size);
  output.read.close();
  int status = 0;
  while (waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    fail(ErrorKind::resource, "`{}` failed ({} {})", command, WIFSIGNALED(status) ? "signal" : "exit code",
         WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
  }
  return text;
}

using Entry = std::vector<std::pair<std::string, std::string>>;

std::string value_of(const Entry& entry, const std::string& name) {
  for (const auto& [field, value] : entry) {
    if (field == name) return value;
  }
  std::string fields;
  for (const auto& [field, value] : entry) fields += (fields.empty() ? "" : ", ") + field;
  fail(ErrorKind::data, "the quota command names no '{}'; it has {}", name, fields.empty() ? "nothing" : fields);
}

std::vector<Entry> entries_of_json(const std::string& text) {
  const Json json = Json::parse(text, "the quota command");
  if (!json.is(Json::Type::array)) fail(ErrorKind::data, "the quota command prints no array, but {}", json.brief());
  std::vector<Entry> entries;
  for (const Json& one : json.items()) {
    Entry& entry = entries.emplace_back();
    for (const auto& [name, value] : one.members()) entry.emplace_back(name, value.text());
  }
  return entries;
}

std::vector<std::string> words_in(std::string line) {
  const auto between = line.find_first_of("|,");
  std::vector<std::string> words;
  std::istringstream stream(line);
  if (between == std::string::npos) {
    for (std::string word; stream >> word;) words.push_back(word);
    return words;
  }
  for (std::string word; std::getline(stream, word, line[between]);) {
    word.erase(0, word.find_first_not_of(" \t"));
    word.erase(word.find_last_not_of(" \t\r") + 1);
    words.push_back(word);
  }
  return words;
}

std::vector<Entry> entries_of_table(const std::string& text, const std::string& first_column) {
  std::vector<Entry> entries;
  std::vector<std::string> names;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> words = words_in(line);
    if (names.empty()) {  // what stands before the columns' names is passed over
      if (std::ranges::find(words, first_column) != words.end()) names = words;
      continue;
    }
    if (words.size() != names.size()) continue;
    Entry& entry = entries.emplace_back();
    for (std::size_t i = 0; i < words.size(); ++i) entry.emplace_back(names[i], words[i]);
  }
  if (names.empty()) fail(ErrorKind::data, "the quota command prints no line with a column '{}'", first_column);
  return entries;
}

bool lies_in(const fs::path& path, const fs::path& folder) {
  const auto end = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first;
  return !folder.empty() && (end == folder.end() || end->empty());
}

double number_of(const std::string& text, const std::string& unit, const std::string& name) {
  if (text.empty() || text == "-" || text == "none" || text == "unlimited") return 0;
  std::string number = text;
  std::erase_if(number, [](char c) { return c == '*' || c == ' '; });  // a star marks what is beyond
  const bool bare = number.find_first_not_of("0123456789.") == std::string::npos;
  try {
    return static_cast<double>(parse_bytes(bare ? number + unit : number));
  } catch (const Error&) {
    fail(ErrorKind::data, "the quota command has '{}' for {}, which is no number", text, name);
  }
}

std::string expanded(const std::string& path) {
  if (!path.starts_with('$')) return path;
  const auto end = std::min(path.find('/'), path.size());
  const char* value = std::getenv(path.substr(1, end - 1).c_str());
  return value == nullptr || *value == '\0' ? "" : value + path.substr(end);
}

void judge(Findings& found, const char* name, double used, double limit, const std::string& text) {
  if (limit <= 0) return;
  const double share = 100 * used / limit;
  found.number(name, "", share, "%");
  found.judge(name, share, fmt::format("{} ({:.0f}%)", text, share),
              "remove what is no longer needed, or ask for more: a job fails where it writes beyond", SETTING);
}

}  // namespace

QuotaUse read_quota(const SiteQuota& quota, const std::string& answer, const std::string& folder) {
  const std::vector<Entry> entries =
      quota.format() == SiteQuota::JSON ? entries_of_json(answer) : entries_of_table(answer, quota.path());
  const fs::path path = fs::path(folder).lexically_normal();
  const Entry* nearest = nullptr;
  std::size_t length = 0;
  std::string folders;
  for (const Entry& entry : entries) {
    const std::string of = value_of(entry, quota.path());
    folders += (folders.empty() ? "" : ", ") + of;
    if (of.size() < length || !lies_in(path, fs::path(of).lexically_normal())) continue;
    nearest = &entry;
    length = of.size();
  }
  if (nearest == nullptr) {
    fail(ErrorKind::data, "the quota command says nothing of {}, but of {}", path.string(),
         folders.empty() ? "no folder" : folders);
  }
  const auto number = [&](const std::string& name, const std::string& unit) {
    return name.empty() ? 0 : number_of(value_of(*nearest, name), unit, name);
  };
  return {number(quota.bytes_used(), quota.unit()), number(quota.bytes_limit(), quota.unit()),
          number(quota.files_used(), ""), number(quota.files_limit(), "")};
}

CheckResult check_quota(const CheckContext& context, const SiteFileSystem& system) {
  Findings found(context);
  const char* node = std::getenv("SLURM_NODEID");
  if (context.root != "/") return found.skipped("a command of this machine is asked, and not a recorded one");
  if (node != nullptr && std::strcmp(node, "0") != 0) {
    return found.skipped("the first node of the allocation asks, since all would hear the same");
  }
  const std::string folder = expanded(system.path());
  if (folder.empty()) return found.skipped(system.path() + " is not set here");
  try {
    const QuotaUse use = read_quota(system.quota(), said_by(system.quota_command()), folder);
    judge(found, "bytes", use.bytes, use.bytes_limit,
          fmt::format("{}: {} of {} are used", system.path(), format_bytes(static_cast<std::uint64_t>(use.bytes)),
                      format_bytes(static_cast<std::uint64_t>(use.bytes_limit))));
    judge(found, "files", use.files, use.files_limit,
          fmt::format("{}: {} of {} files are used", system.path(), format_count(use.files),
                      format_count(use.files_limit)));
    const std::string none = use.bytes_limit <= 0 && use.files_limit <= 0 ? ", which has no limit" : "";
    return found.result(
        fmt::format("{} bytes and {} files in {}{}", format_count(use.bytes), format_count(use.files), folder, none));
  } catch (const Error& error) {  // the node is none the worse for it
    found.warn(error.what(), "correct machine.file_system.quota of the site");
    return found.result("");
  }
}

std::vector<NodeCheck> quota_checks(const Site& site) {
  std::vector<NodeCheck> checks;
  for (const SiteFileSystem& system : site.machine().file_system()) {
    if (!system.has_quota() || system.quota_command().empty()) continue;
    checks.push_back({{.id = "fs.quota." + system.path(),
                       .description = "blocks and inodes of the quota, by the site's command",
                       .deadline = std::chrono::seconds(15),
                       .when_late = WARN,
                       .thresholds = {{"bytes", "%", false, 99.99, 90.0, "of the limit, that are used"},
                                      {"files", "%", false, 99.99, 90.0, "likewise"}},
                       .sensors = {}},
                      [system](const CheckContext& context) { return check_quota(context, system); }});
  }
  return checks;
}

}  // namespace ananke::node_checks
