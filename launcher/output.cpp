#include "launcher/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>

#include "runtime/base/error.h"

namespace ananke {

int tell_errors(const std::function<int()>& work) {
  try {
    return work();
  } catch (const Error& error) {
    std::fprintf(stderr, "ananke: %s\n", error.what());
    return static_cast<int>(error.kind());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ananke: unexpected %s\n", error.what());
    return static_cast<int>(ErrorKind::internal);
  }
}

void check_output() {
  errno = 0;
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written || errno == EPIPE) return;
  const char* why = errno == 0 ? "an earlier write has failed" : std::strerror(errno);
  std::clearerr(stdout);  // it is said once
  fail(ErrorKind::resource, "cannot write all of the output: {}; what was done is done, but not all of it is said",
       why);
}

}  // namespace ananke
