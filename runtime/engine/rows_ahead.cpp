#include "runtime/engine/rows_ahead.h"

#include <utility>

namespace ananke {

void RowsAhead::prepare() noexcept {
  if (ready_) return;
  try {
    position_ = batches_.position();
    ready_ = true;
    batches_.next(count_, rows_);
  } catch (...) {
    ready_ = true;
    failure_ = std::current_exception();
  }
}

const Rows& RowsAhead::take() {
  prepare();
  ready_ = false;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  return rows_;
}

void RowsAhead::restore(const std::string& position) {
  ready_ = false;
  failure_ = nullptr;
  batches_.restore(position);
}

}  // namespace ananke
