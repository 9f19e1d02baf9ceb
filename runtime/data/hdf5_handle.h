// What every caller of libhdf5 in this folder needs: the lock, its error stack as a sentence, and handles that close
// themselves. hdf5.h stays out of headers; its hid_t is a 64-bit integer.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

namespace ananke {

// Held around calls of libhdf5; keeps it from printing its errors itself.
class Hdf5Session {
 public:
  Hdf5Session();

 private:
  std::scoped_lock<std::mutex> lock_;
};

// The innermost message of the last failed call: "unable to open file: ...". For use at once, under the same session.
std::string hdf5_reason();

class Hdf5Handle {
 public:
  using Close = int (*)(std::int64_t);
  Hdf5Handle() = default;
  Hdf5Handle(std::int64_t id, Close close) noexcept : id_(id), close_(close) {}
  ~Hdf5Handle() { reset(); }
  Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
    reset();
    id_ = std::exchange(other.id_, -1);
    close_ = other.close_;
    return *this;
  }
  std::int64_t get() const noexcept { return id_; }
  explicit operator bool() const noexcept { return id_ >= 0; }
  // Closes now; false when libhdf5 says that it failed (data may be lost).
  bool reset() noexcept { return id_ < 0 || close_(std::exchange(id_, -1)) >= 0; }

 private:
  std::int64_t id_ = -1;
  Close close_ = nullptr;
};

}  // namespace ananke
