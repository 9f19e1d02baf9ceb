// The few socket calls that the control channel needs, with errors that name the address.
#pragma once

#include <chrono>
#include <string>
#include <utility>

namespace ananke {

// Owns a file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) noexcept : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();
  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  void close() noexcept;

 private:
  int fd_;
};

// A non-blocking listening socket on `host` (name or address; "0.0.0.0": all) and a port chosen by the system.
// Throws Error(resource).
Descriptor listen_on(const std::string& host);
int port_of(const Descriptor& socket);
// A connected non-blocking socket to "host:port". Tries again while the other end is busy, until `deadline`; an address
// at which nobody listens is given up sooner. Throws Error(config) for text that is no address, Error(stalled) else.
Descriptor connect_to(const std::string& address, std::chrono::milliseconds deadline);

// A secret for one job: 64 hexadecimal digits of the kernel's random numbers.
std::string make_secret();
// Takes the same time whatever differs.
bool same_secret(const std::string& a, const std::string& b) noexcept;

}  // namespace ananke
