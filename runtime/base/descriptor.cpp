#include "runtime/base/descriptor.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/base/error.h"

namespace ananke {

void Descriptor::close() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Pipe::Pipe(Waits waits) {
  int ends[2];
  if (pipe2(ends, waits == Waits::nobody ? O_CLOEXEC | O_NONBLOCK : O_CLOEXEC) != 0) {
    fail(ErrorKind::resource, "cannot make a pipe: {}; look at the limit of open files (ulimit -n)",
         std::strerror(errno));
  }
  read = Descriptor(ends[0]);
  write = Descriptor(ends[1]);
  if (waits == Waits::writer) fcntl(ends[0], F_SETFL, O_NONBLOCK);
}

}  // namespace ananke
