#include "launcher/child_process.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "launcher/last_words.h"
#include "launcher/output.h"
#include "runtime/base/error.h"

namespace ananke {
namespace {

int run(const std::function<void()>& work) {
  const LastWords last_words;
  return tell_errors([&] {
    work();
    check_output();
    return 0;
  });
}

int exit_code_of(const char* what, pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) fail(ErrorKind::resource, "cannot wait for {}: {}", what, std::strerror(errno));
  }
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  fail(ErrorKind::worker_failed, "{} was ended by signal {} ({}) while it built the job's plugins", what,
       WTERMSIG(status), strsignal(WTERMSIG(status)));
}

}  // namespace

int run_in_child(const char* what, const std::function<void()>& work) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child < 0) fail(ErrorKind::resource, "cannot start a process for {}: {}", what, std::strerror(errno));
  if (child > 0) return exit_code_of(what, child);
  const int code = run(work);
  std::fflush(stdout);
  _exit(code);
}

}  // namespace ananke
