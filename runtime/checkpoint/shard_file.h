// One rank's HDF5 file. The only place that knows HDF5 in checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"

namespace ananke {

// Writes all fragments, contiguous and uncompressed, into a new file and syncs it. Returns their checksums. Throws
// Error(checkpoint) naming the file and the reason (the system's, where there is one).
std::vector<std::uint64_t> write_shard(const std::filesystem::path& file, std::span<const StateFragment> fragments);

// Reads ranges out of a file whose hash has been checked: HDF5 is not robust against damaged files.
class ShardReader {
 public:
  // Throws Error(checkpoint) when it is no HDF5 file, or one with a superblock of another version than write_shard
  // writes: older ones have no checksums of their own, and libhdf5 1.10 trusts them too much.
  explicit ShardReader(const std::filesystem::path& file);
  ~ShardReader();
  ShardReader(ShardReader&&) noexcept;
  // Elements [offset, offset + count) of the fragment into `into`. Throws Error(checkpoint) when the fragment is not
  // there or is shorter.
  void read(const std::string& parameter, const std::string& state, std::int64_t offset, std::int64_t count,
            float* into);
  // What write_shard noted beside the fragment's data.
  struct Description {
    std::int64_t elements = 0;
    std::int64_t begin = 0;
    std::vector<std::int64_t> shape;
    std::uint64_t checksum = 0;
  };
  Description describe(const std::string& parameter, const std::string& state);

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
};

}  // namespace ananke
