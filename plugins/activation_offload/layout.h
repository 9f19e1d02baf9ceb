// Which layers' inputs leave the device, and what memory that takes on either side: pure functions of config and shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/operators/wire.h"
#include "runtime/tensor/tensor.h"

namespace ananke::activation_offload {

struct Settings {
  double fraction = 1;                       // of the layers
  std::optional<std::uint64_t> window = {};  // device bytes; see the .proto
  std::optional<std::uint64_t> budget = {};  // host bytes
  bool fp8 = false;
};

struct Shape {
  int layers;
  int microbatches;   // in flight
  std::size_t bytes;  // of one input, at most
  std::int64_t hidden;
  DType compute;  // of its elements
  // Of whole tokens: bytes are rounded up.
  std::int64_t elements() const { return static_cast<std::int64_t>(bytes / size_of(compute)) / hidden * hidden; }
};

struct Layout {
  std::vector<int> moved;       // layers, ascending
  std::size_t stride = 0;       // of an input on the device, aligned
  std::size_t wire = 0;         // bytes that travel of one
  std::size_t wire_stride = 0;  // of those on either side, aligned
  int places = 0;               // on the device, for the inputs of moved layers
  int residents = 0;            // inputs that stay: of other layers and the head, of all microbatches
  std::size_t scratch = 0;      // an input in f32, where it is rounded from another type
  std::size_t table = 0;        // of block_rows()
  int microbatches = 0;
  bool fp8 = false;

  std::size_t device_inputs() const { return static_cast<std::size_t>(residents + places) * stride; }
  // fp8: what is rounded, and is on its way, of each place.
  std::size_t device_wire() const { return static_cast<std::size_t>(fp8 ? places : 0) * wire_stride + scratch + table; }
  std::size_t host_of_layer() const { return static_cast<std::size_t>(microbatches) * wire_stride; }
  std::size_t host() const { return moved.size() * host_of_layer(); }
};

// fp8: an input [tokens, hidden] as pieces of 128 tokens each; scales lie behind all codes.
std::vector<Wire::BlockPiece> block_rows(const Shape& shape);
Layout make_layout(const Settings& settings, const Shape& shape);
// "inputs of 3 of 8 layers (0, 2, 5) wait on the host: 12 MiB there, ...".
std::string describe(const Layout& layout, const Settings& settings, const Shape& shape);

}  // namespace ananke::activation_offload
