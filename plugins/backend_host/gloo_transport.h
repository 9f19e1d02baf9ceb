// Transport between processes: Gloo's unbound buffers over TCP. Gloo's headers stay in gloo_transport.cpp.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plugins/backend_host/transport.h"
#include "runtime/device/arena.h"

namespace ananke {

// One listening address and one thread for all communicators of a process.
class GlooDevice {
 public:
  // `interface`: name of a network interface, an address or a host name; empty: loopback. Error(config) where it cannot
  // be used.
  explicit GlooDevice(const std::string& interface);
  ~GlooDevice();

  struct Setup {
    std::vector<int> ranks;  // world ranks in the group's order, for messages
    int rank = 0;            // own, within the group
    std::chrono::milliseconds connect_deadline;
    std::chrono::milliseconds deadline;  // of every wait afterwards
    // Gives every rank of the group everybody's blob of this step, in order. Called once per step.
    std::function<std::vector<std::string>(const std::string& step, std::string blob)> exchange;
  };
  // Connects all pairs. What it needs to let data land comes from `memory`, grows to the largest exchange and stays.
  std::unique_ptr<Transport> connect(const Setup& setup, Arena& memory);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ananke
