// The rows of the next step, made while the device still computes this one.
#pragma once

#include <exception>
#include <string>

#include "runtime/roles/batches.h"

namespace ananke {

class RowsAhead {
 public:
  // `count`: global rows of a step. `batches` outlives this.
  RowsAhead(Batches& batches, std::int64_t count) : batches_(batches), count_(count) {}
  // Makes the rows that the next take() gives. What goes wrong is kept for take(): it is of the step that needs the
  // rows.
  void prepare() noexcept;
  // The rows of the next step, made now where prepare() was not called. Valid until the next prepare() or take().
  const Rows& take();
  // Where the source stands for who has seen only the rows that were taken.
  std::string position() const { return ready_ ? position_ : batches_.position(); }
  void restore(const std::string& position);

 private:
  Batches& batches_;
  std::int64_t count_;
  bool ready_ = false;
  Rows rows_;
  std::exception_ptr failure_;
  std::string position_;  // before rows_
};

}  // namespace ananke
