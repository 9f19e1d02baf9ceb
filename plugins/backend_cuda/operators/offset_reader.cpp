#include "plugins/backend_cuda/operators/offset_reader.h"

#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/cuda_stream.h"
#include "runtime/base/error.h"

namespace ananke::cuda {
namespace {

constexpr std::size_t most_offsets = 1 << 14;

}  // namespace

OffsetReader::OffsetReader(Arena& pinned)
    : pinned_(pinned.allocate(most_offsets * sizeof(std::int32_t), "operators: offsets of groups")) {}

std::span<const std::int32_t> OffsetReader::read(Stream& stream, const TensorView& offsets) {
  ANANKE_CHECK(offsets.bytes() <= pinned_.bytes(), "{} offsets of groups, but {} can be read", offsets.elements(),
               most_offsets);
  check(
      cudaMemcpyAsync(pinned_.data(), offsets.as<std::int32_t>(), offsets.bytes(), cudaMemcpyDeviceToHost, raw(stream)),
      "read the offsets of groups");
  stream.synchronize();
  ++reads_;
  return {static_cast<const std::int32_t*>(pinned_.data()), static_cast<std::size_t>(offsets.elements())};
}

}  // namespace ananke::cuda
