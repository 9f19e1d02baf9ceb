#include "launcher/run_guard.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "runtime/base/error.h"
#include "runtime/control/socket.h"

namespace ananke {
namespace {

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// A process number means one process only within one boot and one process-number space.
std::string machine() {
  std::error_code unknown;
  const std::string space = std::filesystem::read_symlink("/proc/self/ns/pid", unknown).string();
  return text_of("/proc/sys/kernel/random/boot_id") + " " + space;
}

// When the process began, in the kernel's own count; empty where there is no such process.
std::string start_of(const std::string& process) {
  const std::string text = text_of("/proc/" + process + "/stat");
  const auto name_end = text.rfind(") ");  // the name before it may hold anything
  if (name_end == std::string::npos) return {};
  std::istringstream rest(text.substr(name_end + 2));
  std::string field;
  for (int i = 0; i < 20 && rest >> field; ++i) {  // state is the first, start time the twentieth
    if (i == 0 && (field == "Z" || field == "X")) return {};
  }
  return field;
}

struct Holder {
  std::string host, process, start, machine;
};

Holder holder_of(const std::filesystem::path& file) {
  std::ifstream stream(file);
  Holder holder;
  stream >> holder.host >> holder.process >> holder.start;
  stream.ignore();
  std::getline(stream, holder.machine);
  return holder;
}

bool create(const std::filesystem::path& file, const std::string& text) {
  const Descriptor made(open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!made && errno == EEXIST) return false;
  if (!made || write(made.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    fail(ErrorKind::resource, "cannot write {}: {}; check that the run folder can be written and has room",
         file.string(), std::strerror(errno));
  }
  return true;
}

}  // namespace

RunGuard::RunGuard(const std::filesystem::path& run_dir) : file_(run_dir / "launcher.lock") {
  const std::string process = std::to_string(getpid());
  const std::string mine = fmt::format("{} {} {}\n{}\n", host_name(), process, start_of(process), machine());
  if (create(file_, mine)) return;
  // Two launchers may find the same stale file: the one that makes this second file replaces it.
  const std::filesystem::path breaking = file_.string() + ".replacing";
  const Holder holder = holder_of(file_);
  const bool gone = holder.machine == machine() && start_of(holder.process) != holder.start;
  if (!gone || !create(breaking, mine)) {
    const std::string keep = file_.string();
    file_.clear();  // not ours to remove
    fail(ErrorKind::config,
         "the run folder {} is in use by a launcher: process {} on {}; choose another run_dir, or, if "
         "that process is gone for certain, remove {}",
         run_dir.string(), holder.process, holder.host, gone ? keep + ".replacing" : keep);
  }
  std::filesystem::remove(file_);
  const bool made = create(file_, mine);
  std::filesystem::remove(breaking);
  if (!made) {
    file_.clear();
    fail(ErrorKind::config, "the run folder {} was taken by another launcher at this moment; choose another run_dir",
         run_dir.string());
  }
}

RunGuard::~RunGuard() {
  std::error_code ignored;
  if (!file_.empty()) std::filesystem::remove(file_, ignored);
}

}  // namespace ananke
