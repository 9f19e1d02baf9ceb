// Brings a rank's rows to the device as microbatches. Owns the device copies and the host copies they come from.
#pragma once

#include <vector>

#include "runtime/device/device.h"
#include "runtime/model/decoder.h"
#include "runtime/roles/batches.h"

namespace ananke {

class BatchLoader {
 public:
  // At most `microbatches` of `rows` rows of `row_length` tokens each; 0 rows are allowed.
  BatchLoader(Device& device, int microbatches, std::int64_t rows, std::int64_t row_length);
  static std::vector<PlanLine> plan(int microbatches, std::int64_t rows, std::int64_t row_length);

  // Microbatch m gets rows [m * rows, (m + 1) * rows) as far as there are any. Copies on `stream`; the work that used
  // the last load must be done. Views hold until the next load.
  const std::vector<DeviceBatch>& load(Stream& stream, const Rows& rows);

 private:
  struct Layout;
  Device& device_;
  std::int64_t rows_, row_length_, tokens_;
  std::size_t stride_;  // bytes of one microbatch's block
  Buffer host_, on_device_;
  std::vector<DeviceBatch> batches_;
};

}  // namespace ananke
