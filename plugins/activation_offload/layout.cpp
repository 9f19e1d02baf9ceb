#include "plugins/activation_offload/layout.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/units.h"

namespace ananke::activation_offload {
namespace {

std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

std::size_t bytes_of(const std::vector<Wire::BlockPiece>& pieces) {
  if (pieces.empty()) return 0;
  return static_cast<std::size_t>(pieces.back().scales + Wire::scales_of(pieces.back()));
}

// How many layers: what the fraction says, never the last, and no more than the budget pays.
int count_of(const Settings& settings, const Shape& shape, std::size_t host_of_layer) {
  const double wanted = std::round(settings.fraction * shape.layers);
  int count = std::clamp(static_cast<int>(wanted), 0, std::max(shape.layers - 1, 0));
  if (settings.budget && host_of_layer > 0) {
    count =
        static_cast<int>(std::min<std::uint64_t>(static_cast<std::uint64_t>(count), *settings.budget / host_of_layer));
  }
  return count;
}

}  // namespace

std::vector<Wire::BlockPiece> block_rows(const Shape& shape) {
  const std::int64_t elements = shape.elements();
  std::vector<Wire::BlockPiece> pieces;
  std::int64_t scales = elements;
  for (std::int64_t begin = 0; begin < elements; begin += Wire::block * shape.hidden) {
    const std::int64_t count = std::min(Wire::block * shape.hidden, elements - begin);
    pieces.push_back({shape.hidden, begin, count, begin, begin, scales});
    scales += Wire::scales_of(pieces.back());
  }
  return pieces;
}

Layout make_layout(const Settings& settings, const Shape& shape) {
  Layout layout;
  layout.microbatches = shape.microbatches;
  layout.fp8 = settings.fp8;
  layout.stride = aligned(shape.bytes);
  const auto pieces = settings.fp8 ? block_rows(shape) : std::vector<Wire::BlockPiece>{};
  layout.wire = settings.fp8 ? bytes_of(pieces) : shape.bytes;
  layout.wire_stride = aligned(layout.wire);
  const std::int64_t count = count_of(settings, shape, layout.host_of_layer()), candidates = shape.layers - 1;
  for (std::int64_t layer = 0; layer < candidates; ++layer) {
    if ((layer + 1) * count / candidates > layer * count / candidates) layout.moved.push_back(static_cast<int>(layer));
  }
  const std::int64_t inputs = count * shape.microbatches;
  // While a microbatch goes through a layer, the layer's inputs of it and those behind it are there, and the next
  // layer's of it and those before it.
  const std::int64_t fewest = shape.microbatches + 1;
  const std::int64_t wanted =
      settings.window ? static_cast<std::int64_t>(*settings.window / std::max<std::size_t>(layout.stride, 1))
                      : fewest + 1;
  layout.places = static_cast<int>(std::min(std::max(wanted, fewest), inputs));
  layout.residents = (shape.layers + 1 - static_cast<int>(count)) * shape.microbatches;
  if (count > 0) layout.table = pieces.size() * sizeof(Wire::BlockPiece);
  if (count > 0 && settings.fp8 && shape.compute != DType::f32) {
    layout.scratch = aligned(static_cast<std::size_t>(shape.elements()) * sizeof(float));
  }
  return layout;
}

std::string describe(const Layout& layout, const Settings& settings, const Shape& shape) {
  if (layout.moved.empty()) {
    return fmt::format("no input leaves the device: fraction {} of {} layers, of which the last never does{}",
                       settings.fraction, shape.layers,
                       settings.budget ? fmt::format(", in a budget of {}", format_bytes(*settings.budget)) : "");
  }
  const std::size_t all = static_cast<std::size_t>((shape.layers + 1) * shape.microbatches) * layout.stride;
  return fmt::format("inputs of {} of {} layers ({}) wait on the host{}: {} there; {} on the device instead of {}",
                     layout.moved.size(), shape.layers, fmt::join(layout.moved, ", "), layout.fp8 ? " in fp8" : "",
                     format_bytes(layout.host()), format_bytes(layout.device_inputs() + layout.device_wire()),
                     format_bytes(all));
}

}  // namespace ananke::activation_offload
