// The item of its schedule that a rank is at: written by the thread that issues work, read by those who report.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>

#include "runtime/model/schedule.h"

namespace ananke {

class ItemTrail {
 public:
  void begin(ItemPlace place) {
    const std::lock_guard lock(mutex_);
    place_ = std::move(place);
    ++begun_;
  }
  // The last that began, and how many have begun since start.
  std::pair<ItemPlace, std::uint64_t> now() const {
    const std::lock_guard lock(mutex_);
    return {place_, begun_};
  }

 private:
  mutable std::mutex mutex_;
  ItemPlace place_;
  std::uint64_t begun_ = 0;
};

}  // namespace ananke
