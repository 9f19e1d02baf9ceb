#include "runtime/engine/batch_loader.h"

#include <algorithm>
#include <cstring>

#include "runtime/model/region_cutter.h"

namespace ananke {

// One block per microbatch, copied in one piece.
struct BatchLoader::Layout {
  TensorView ids, targets, positions, offsets, whole;
  std::size_t bytes = 0;

  Layout(Region region, std::int64_t tokens) {
    RegionCutter cutter = region.data ? RegionCutter(region) : RegionCutter();
    ids = cutter.tensor(DType::i32, {tokens});
    targets = cutter.tensor(DType::i32, {tokens});
    positions = cutter.tensor(DType::i32, {tokens});
    offsets = cutter.tensor(DType::i32, {tokens + 1});
    whole = cutter.tensor(DType::i32, {2});
    bytes = cutter.used();
  }
};

BatchLoader::BatchLoader(Device& device, int microbatches, std::int64_t rows, std::int64_t row_length)
    : device_(device),
      rows_(rows),
      row_length_(row_length),
      tokens_(rows * row_length),
      stride_(Layout({}, rows * row_length).bytes),
      batches_(static_cast<std::size_t>(microbatches)) {
  host_ = device.host_memory().allocate(stride_ * batches_.size(), "batch (host)");
  on_device_ = device.memory().allocate(stride_ * batches_.size(), "batch");
}

std::vector<PlanLine> BatchLoader::plan(int microbatches, std::int64_t rows, std::int64_t row_length) {
  const std::uint64_t bytes = Layout({}, rows * row_length).bytes * static_cast<std::uint64_t>(microbatches);
  return {{"batch", Place::device, bytes}, {"batch (host)", Place::host, bytes}};
}

const std::vector<DeviceBatch>& BatchLoader::load(Stream& stream, const Rows& rows) {
  ANANKE_CHECK(rows.row_length == row_length_ || rows.rows == 0, "rows of {} tokens, made for {}", rows.row_length,
               row_length_);
  ANANKE_CHECK(rows.rows <= rows_ * static_cast<std::int64_t>(batches_.size()), "{} rows for {} microbatches of {}",
               rows.rows, batches_.size(), rows_);
  for (std::size_t m = 0; m < batches_.size(); ++m) {
    const auto at = [&](const Buffer& buffer) {
      return Region{static_cast<std::byte*>(buffer.data()) + m * stride_, stride_};
    };
    const Layout host(at(host_), tokens_), device(at(on_device_), tokens_);
    const std::int64_t first = std::min(rows.rows, static_cast<std::int64_t>(m) * rows_);
    const std::int64_t count = std::min(rows.rows - first, rows_);
    const std::int64_t tokens = count * row_length_, begin = first * row_length_;
    const auto fill = [&](const TensorView& to, const std::vector<std::int32_t>& from) {
      std::copy_n(from.begin() + begin, tokens, to.as<std::int32_t>());
    };
    fill(host.ids, rows.tokens);
    fill(host.targets, rows.targets);
    fill(host.positions, rows.positions);

    auto* offsets = host.offsets.as<std::int32_t>();
    std::int64_t segments = 0, longest = 0;
    for (std::int64_t r = 0; r < count; ++r) {
      for (std::int32_t within : rows.segments[static_cast<std::size_t>(first + r)]) {
        offsets[segments++] = static_cast<std::int32_t>(r * row_length_) + within;
      }
    }
    offsets[segments] = static_cast<std::int32_t>(tokens);
    for (std::int64_t s = 0; s < segments; ++s) longest = std::max<std::int64_t>(longest, offsets[s + 1] - offsets[s]);
    host.whole.as<std::int32_t>()[0] = 0;
    host.whole.as<std::int32_t>()[1] = static_cast<std::int32_t>(tokens);

    device_.copy(stream, at(on_device_).data, at(host_).data, stride_);
    batches_[m] = {tokens,
                   device.ids.slice(0, tokens),
                   device.targets.slice(0, tokens),
                   device.positions.slice(0, tokens),
                   {device.offsets.slice(0, segments + 1), segments, longest},
                   device.whole,
                   tokens - std::count(rows.targets.begin() + begin, rows.targets.begin() + begin + tokens, -1)};
  }
  return batches_;
}

}  // namespace ananke
