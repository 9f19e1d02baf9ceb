// Owners of file descriptors.
#pragma once

#include <utility>

namespace ananke {

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) noexcept : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { close(); }
  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  void close() noexcept;

 private:
  int fd_;
};

// Two ends of a pipe, neither of which a program that is executed inherits.
struct Pipe {
  enum class Waits {
    both,    // reading waits for what is written, writing for room
    writer,  // reading never waits
    nobody,
  };
  explicit Pipe(Waits waits = Waits::both);  // throws Error(resource)
  Descriptor read, write;
};

}  // namespace ananke
