#include "runtime/device/arena.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/units.h"

namespace ananke {

Buffer::Buffer(Buffer&& other) noexcept { *this = std::move(other); }

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    if (arena_) arena_->release(*this);
    arena_ = std::exchange(other.arena_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    purpose_ = std::move(other.purpose_);
  }
  return *this;
}

Buffer::~Buffer() {
  if (arena_) arena_->release(*this);
}

TensorView Buffer::view(DType dtype, Shape shape, std::size_t offset) const {
  TensorView tensor{static_cast<std::byte*>(data_) + offset, dtype, shape};
  ANANKE_CHECK(offset + tensor.bytes() <= bytes_, "view of {} at byte {} of a buffer of {} for {}",
               format_bytes(tensor.bytes()), offset, format_bytes(bytes_), purpose_);
  return tensor;
}

Arena::~Arena() {
  for (const auto& [purpose, account] : accounts_) {
    if (account.bytes)
      log_error("{} of {} for {} outlive their arena", format_bytes(account.bytes), source_.name(), purpose);
  }
}

Buffer Arena::allocate(std::size_t bytes, const std::string& purpose) {
  Buffer buffer;
  if (bytes == 0) return buffer;
  buffer.data_ = source_.allocate(bytes);
  buffer.arena_ = this;
  buffer.bytes_ = bytes;
  buffer.purpose_ = purpose;
  std::lock_guard lock(guard_);
  Account& account = accounts_[purpose];
  account.bytes += bytes;
  account.peak = std::max(account.peak, account.bytes);
  ++account.allocations;
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return buffer;
}

void Arena::release(Buffer& buffer) noexcept {
  source_.release(buffer.data_, buffer.bytes_);
  std::lock_guard lock(guard_);
  if (auto found = accounts_.find(buffer.purpose_); found != accounts_.end()) {
    found->second.bytes -= buffer.bytes_;
    --found->second.allocations;
  }
  used_ -= buffer.bytes_;
}

std::vector<Arena::Line> Arena::ledger() const {
  std::vector<Line> lines;
  {
    std::lock_guard lock(guard_);
    for (const auto& [purpose, account] : accounts_) {
      if (account.bytes) lines.push_back({purpose, account.bytes, account.allocations, account.peak});
    }
  }
  std::sort(lines.begin(), lines.end(), [](const Line& a, const Line& b) { return a.bytes > b.bytes; });
  return lines;
}

std::vector<Arena::Line> Arena::history() const {
  std::lock_guard lock(guard_);
  std::vector<Line> lines;
  for (const auto& [purpose, account] : accounts_) {
    lines.push_back({purpose, account.bytes, account.allocations, account.peak});
  }
  return lines;
}

std::uint64_t Arena::used() const {
  std::lock_guard lock(guard_);
  return used_;
}

std::uint64_t Arena::peak() const {
  std::lock_guard lock(guard_);
  return peak_;
}

}  // namespace ananke
