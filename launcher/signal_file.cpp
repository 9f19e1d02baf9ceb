#include "launcher/signal_file.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/base/error.h"

namespace ananke {

SignalFile::SignalFile(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (int number : signals) {
    // A signal that whoever started us has ignored (nohup) stays ignored.
    struct sigaction action {};
    sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&set, number);
  }
  pthread_sigmask(SIG_BLOCK, &set, &before_);
  file_ = Descriptor(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!file_) {
    const int error = errno;
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    fail(ErrorKind::resource, "signalfd: {}", std::strerror(error));
  }
}

SignalFile::~SignalFile() {
  while (take() != 0) {  // one that is still pending would act as soon as the mask is restored
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

int SignalFile::take() {
  signalfd_siginfo info{};
  return read(file_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info) ? static_cast<int>(info.ssi_signo)
                                                                                    : 0;
}

}  // namespace ananke
