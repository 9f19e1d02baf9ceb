// The first thing that went wrong on a device: work on its streams has no one to throw to, so it is told here, and who
// waits for a stream throws it. Thread-safe.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "runtime/base/error.h"

namespace ananke::cuda {

class Failure {
 public:
  // Later ones are consequences and are dropped.
  void set(ErrorKind kind, const std::string& message) {
    std::lock_guard lock(mutex_);
    keep(std::make_exception_ptr(Error(kind, message)));
  }
  bool failed() const noexcept { return failed_; }
  // Throws what was set, or what `look` of look_by() throws.
  void rethrow() const {
    std::lock_guard lock(mutex_);
    if (!failed_ && look_) {
      try {
        look_();
      } catch (...) {
        keep(std::current_exception());
      }
    }
    if (failed_) std::rethrow_exception(error_);
  }
  // `look` is called by everyone who has waited for a stream, and throws what kernels have found wrong; null: nobody.
  void look_by(std::function<void()> look) {
    std::lock_guard lock(mutex_);
    look_ = std::move(look);
  }

 private:
  void keep(std::exception_ptr error) const {
    if (failed_) return;
    error_ = std::move(error);
    failed_ = true;
  }
  mutable std::mutex mutex_;
  mutable std::atomic<bool> failed_ = false;
  mutable std::exception_ptr error_;
  std::function<void()> look_;
};

}  // namespace ananke::cuda
