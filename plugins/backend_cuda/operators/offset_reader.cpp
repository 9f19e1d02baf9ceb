#include "plugins/backend_cuda/operators/offset_reader.h"

#include <algorithm>

#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/cuda_stream.h"
#include "runtime/base/error.h"

namespace ananke::cuda {
namespace {

constexpr std::size_t most_offsets = 1 << 14;

}  // namespace

OffsetReader::OffsetReader(Arena& pinned)
    : pinned_(pinned.allocate(most_offsets * sizeof(std::int32_t), "operators: offsets of groups")) {}

std::span<const std::int32_t> OffsetReader::get(Stream& stream, const TensorView& offsets,
                                                std::span<const std::int64_t> known) {
  ANANKE_CHECK(offsets.bytes() <= pinned_.bytes(), "{} offsets of groups, but {} can be read", offsets.elements(),
               most_offsets);
  auto* values = static_cast<std::int32_t*>(pinned_.data());
  const std::span<const std::int32_t> all{values, static_cast<std::size_t>(offsets.elements())};
  if (!known.empty()) {
    std::ranges::transform(known, values, [](std::int64_t offset) { return static_cast<std::int32_t>(offset); });
    return all;
  }
  check(cudaMemcpyAsync(values, offsets.as<std::int32_t>(), offsets.bytes(), cudaMemcpyDeviceToHost, raw(stream)),
        "read the offsets of groups");
  stream.synchronize();
  ++reads_;
  return all;
}

}  // namespace ananke::cuda
