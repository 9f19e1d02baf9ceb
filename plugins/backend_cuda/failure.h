// The first thing that went wrong on a device: work on its streams has no one to throw to, so it is told here, and who
// waits for a stream throws it. Thread-safe.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <map>
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
  // Throws what was set, or what one of look_by() throws.
  void rethrow() const {
    std::lock_guard lock(mutex_);
    for (const auto& [who, look] : looks_) {
      if (failed_) break;
      try {
        look();
      } catch (...) {
        keep(std::current_exception());
      }
    }
    if (failed_) std::rethrow_exception(error_);
  }
  // `look` is called by everyone who has waited for a stream, and throws what kernels have found wrong; null: those of
  // `who` have ended.
  void look_by(const void* who, std::function<void()> look) {
    std::lock_guard lock(mutex_);
    looks_.erase(who);
    if (look) looks_.emplace(who, std::move(look));
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
  std::map<const void*, std::function<void()>> looks_;
};

}  // namespace ananke::cuda
