// The first thing that went wrong on a device: work on its streams has no one to throw to, so it is told here, and who
// waits for a stream throws it. Thread-safe.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <string>

#include "runtime/base/error.h"

namespace ananke::cuda {

class Failure {
 public:
  // Later ones are consequences and are dropped.
  void set(ErrorKind kind, const std::string& message) {
    std::lock_guard lock(mutex_);
    if (error_) return;
    error_ = std::make_exception_ptr(Error(kind, message));
    failed_ = true;
  }
  bool failed() const noexcept { return failed_; }
  void rethrow() const {
    if (!failed_) return;
    std::lock_guard lock(mutex_);
    std::rethrow_exception(error_);
  }

 private:
  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace ananke::cuda
