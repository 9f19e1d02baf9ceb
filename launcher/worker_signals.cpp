#include "launcher/worker_signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "launcher/worker_process.h"
#include "runtime/base/log.h"
#include "runtime/control/control_client.h"

namespace ananke {

WorkerSignals::WorkerSignals() : quit_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

WorkerSignals::~WorkerSignals() { forget(); }

void WorkerSignals::tell(ControlClient& control, std::function<void()> on_quit) {
  thread_ = std::thread([this, &control, on_quit = std::move(on_quit)] {
    for (;;) {
      pollfd ready[2] = {{signals_.descriptor(), POLLIN, 0}, {quit_.get(), POLLIN, 0}};
      poll(ready, 2, -1);
      if (ready[1].revents != 0) return;
      for (int number; (number = signals_.take()) != 0;) {
        if (number == SIGQUIT) {
          on_quit();
          continue;
        }
        log_info("received {}: asking the launcher to stop all ranks", signal_name(number));
        control.request_stop(signal_name(number));
      }
    }
  });
}

void WorkerSignals::forget() {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t ignored = write(quit_.get(), &one, sizeof one);
  thread_.join();
}

}  // namespace ananke
