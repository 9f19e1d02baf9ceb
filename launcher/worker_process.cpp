#include "launcher/worker_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "runtime/base/error.h"
#include "runtime/base/process.h"

extern char** environ;

namespace ananke {
namespace {

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

struct ChildPlan {
  const char* program;
  char* const* arguments;
  char* const* environment;
  const std::function<int()>& work;
  int input, output, errors, death_signal;
  pid_t parent;
};

// Between fork and exec in a process that had threads: async-signal-safe calls only, up to work that is done here.
[[noreturn]] void become_worker(const ChildPlan& plan) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, plan.death_signal);
  if (getppid() != plan.parent) _exit(1);  // the launcher ended before the line above
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) sigaction(number, &action, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(plan.input, STDIN_FILENO);
  dup2(plan.output, STDOUT_FILENO);
  dup2(plan.errors, STDERR_FILENO);
  if (plan.work) std::exit(plan.work());
  execve(plan.program, plan.arguments, plan.environment);
  const char* reason = strerrordesc_np(errno);
  const char* parts[] = {"ananke: cannot execute ", plan.program, ": ", reason == nullptr ? "unknown" : reason, "\n"};
  for (const char* part : parts) [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, part, std::strlen(part));
  _exit(127);
}

}  // namespace

std::vector<std::string> changed_environment(const std::vector<std::pair<std::string, std::string>>& changes) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
  for (const auto& [name, value] : changes) set_variable(variables, name, value);
  return variables;
}

void set_variable(std::vector<std::string>& environment, const std::string& name, const std::string& value) {
  std::erase_if(environment, [&](const std::string& one) { return one.starts_with(name + "="); });
  environment.push_back(name + "=" + value);
}

std::string find_program(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr || name.find('/') != std::string::npos ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string file = (folder.empty() ? "." : folder) + "/" + name;
    std::error_code none;
    if (std::filesystem::is_regular_file(file, none) && access(file.c_str(), X_OK) == 0) return file;
  }
  return name;
}

WorkerProcess::WorkerProcess(const ProcessSpec& spec) {
  const Descriptor input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const bool to_log = spec.output < 0 || spec.errors < 0;
  const Descriptor log(to_log ? open(spec.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1);
  if (!input || (to_log && !log)) {
    fail(ErrorKind::resource, "cannot open the log file {} for a worker: {}", spec.log.string(), std::strerror(errno));
  }
  const std::vector<char*> arguments = pointers_to(spec.arguments);
  const std::vector<char*> environment = pointers_to(spec.environment);
  const ChildPlan plan{.program = spec.program.c_str(),
                       .arguments = arguments.data(),
                       .environment = environment.data(),
                       .work = spec.work,
                       .input = input.get(),
                       .output = spec.output < 0 ? log.get() : spec.output,
                       .errors = spec.errors < 0 ? log.get() : spec.errors,
                       .death_signal = spec.death_signal == 0 ? SIGKILL : spec.death_signal,
                       .parent = getpid()};
  if (spec.work) std::fflush(nullptr);  // or the copy prints it again
  const pid_t pid = fork();
  if (pid == 0) become_worker(plan);
  if (pid < 0) {
    fail(ErrorKind::resource, "cannot start a worker: fork: {}; look at the limit of processes (ulimit -u)",
         std::strerror(errno));
  }
  setpgid(pid, pid);  // whoever comes first; the child's own call may still be ahead
  pid_ = pid;
  running_ = true;
  handle_ = Descriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!handle_) {
    const int error = errno;
    signal(SIGKILL);
    waitpid(pid, nullptr, 0);
    running_ = false;
    fail(ErrorKind::resource, "cannot watch worker process {}: pidfd_open: {}; Linux 5.3 or newer is needed", pid,
         std::strerror(error));
  }
}

WorkerProcess::WorkerProcess(WorkerProcess&& other) noexcept
    : pid_(other.pid_), running_(std::exchange(other.running_, false)), handle_(std::move(other.handle_)) {}

WorkerProcess::~WorkerProcess() {
  if (!running_) return;
  signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void WorkerProcess::signal(int number) const {
  if (!running_) return;
  if (kill(-pid_, number) != 0) kill(pid_, number);
}

std::optional<ExitStatus> WorkerProcess::reap() {
  siginfo_t info{};
  if (!running_ || waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0) {
    return std::nullopt;
  }
  signal(SIGKILL);  // the group's helpers, while the zombie still reserves its number
  int status = 0;
  waitpid(pid_, &status, 0);
  running_ = false;
  if (WIFSIGNALED(status)) return ExitStatus{WTERMSIG(status), 0, WCOREDUMP(status) != 0};
  return ExitStatus{0, WEXITSTATUS(status), false};
}

std::string WorkerProcess::state() const { return state_of(pid_); }

std::string signal_name(int number) {
  const char* name = sigabbrev_np(number);
  return name == nullptr ? fmt::format("signal {}", number) : fmt::format("SIG{}", name);
}

}  // namespace ananke
