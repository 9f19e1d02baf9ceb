// Test option: every routing decision of a run in a file, and a later run that takes them from there. Top-k is
// discontinuous, so loss curves of two meshes can only be compared closely with the routing held fixed.
//
// File: a header of 6 uint64 {magic, steps, rows per step, MoE layers, row length, k}, then i32
// [step][row of the step][MoE layer][token][choice].
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace ananke {

struct RoutingShape {
  std::uint64_t steps, rows, layers, row_length, k;
  bool operator==(const RoutingShape&) const = default;
};

class RoutingLog {
 public:
  static RoutingLog create(const std::filesystem::path& file, const RoutingShape& shape);
  // Throws Error(config) when the file is of another shape, naming both.
  static RoutingLog open(const std::filesystem::path& file, const RoutingShape& shape);
  RoutingLog(RoutingLog&&) noexcept;
  ~RoutingLog();

  // One row of one layer, [row_length, k]. Step from 1, row and layer from 0.
  void write(std::uint64_t step, std::uint64_t row, std::uint64_t layer, const std::int32_t* indices);
  void read(std::uint64_t step, std::uint64_t row, std::uint64_t layer, std::int32_t* indices) const;

 private:
  RoutingLog(int file, std::filesystem::path path, const RoutingShape& shape);
  std::int64_t offset(std::uint64_t step, std::uint64_t row, std::uint64_t layer) const;
  std::size_t record_bytes() const { return shape_.row_length * shape_.k * sizeof(std::int32_t); }
  int file_ = -1;
  std::filesystem::path path_;
  RoutingShape shape_;
};

}  // namespace ananke
