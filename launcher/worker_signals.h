// A worker's signals: what a batch system or a person sends to one worker becomes a request to stop all; QUIT asks for
// its stacks, and it goes on.
#pragma once

#include <functional>
#include <thread>

#include "launcher/signal_file.h"

namespace ananke {

class ControlClient;

class WorkerSignals {
 public:
  // From here INT, TERM, HUP, USR1, USR2 and QUIT are collected; for the main thread, before there are others.
  WorkerSignals();
  ~WorkerSignals();

  // Passes those that came and those to come on to the launcher; `on_quit` is called for QUIT. `control` outlives this
  // or forget() is called.
  void tell(ControlClient& control, std::function<void()> on_quit);
  void forget();

 private:
  SignalFile signals_{SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT};
  Descriptor quit_;
  std::thread thread_;
};

}  // namespace ananke
