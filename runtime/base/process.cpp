#include "runtime/base/process.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace ananke {
namespace {

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

// Of /proc/N/stat: the state is the first field after the name, the start time the twentieth; empty where unreadable.
std::string stat_field(int process, int number) {
  const std::string text = first_line(fmt::format("/proc/{}/stat", process));
  const auto name_end = text.rfind(") ");  // the name may hold anything
  if (name_end == std::string::npos) return {};
  std::istringstream rest(text.substr(name_end + 2));
  std::string field;
  for (int i = 0; i < number; ++i) rest >> field;
  return field;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown host";
  return name.data();
}

ProcessIdentity this_process() {
  std::error_code unknown;
  return {host_name(), first_line("/proc/sys/kernel/random/boot_id"),
          std::filesystem::read_symlink("/proc/self/ns/pid", unknown).string(), getpid(), stat_field(getpid(), 20)};
}

Life life_of(const ProcessIdentity& identity) {
  const ProcessIdentity here = this_process();
  if (here.boot.empty() || here.space.empty() || identity.process <= 0) return Life::unknown;
  if (identity.boot != here.boot || identity.space != here.space) return Life::unknown;
  // The answer holds for processes of other users too, whom /proc may hide.
  if (kill(identity.process, 0) != 0 && errno == ESRCH) return Life::gone;
  const std::string start = stat_field(identity.process, 20), state = stat_field(identity.process, 1);
  if (start.empty() || identity.start.empty()) return Life::unknown;
  return start != identity.start || state == "Z" || state == "X" ? Life::gone : Life::alive;
}

std::string state_of(int process) {
  const std::string letter = stat_field(process, 1);
  switch (letter.empty() ? '?' : letter.front()) {
    case 'T': return "stopped (SIGSTOP; it can be continued with SIGCONT)";
    case 't': return "stopped by a debugger";
    case 'D': return "in uninterruptible sleep (storage or a driver does not answer)";
    case 'Z': return "dead";
    case '?': return "not found";
    default: return "running";
  }
}

std::uint64_t anonymous_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::strtoull(line.c_str() + 8, nullptr, 10) * 1024;
  }
  return 0;
}

}  // namespace ananke
