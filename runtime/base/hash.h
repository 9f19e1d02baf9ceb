// XXH3 hashes (xxHash library): fast checksums of files and fragments. Not for secrets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace ananke {

std::uint64_t hash64(std::string_view bytes, std::uint64_t seed = 0) noexcept;

// hash64 of what it was given, piece after piece.
class Hasher64 {
 public:
  Hasher64();
  ~Hasher64();
  void update(const void* data, std::size_t bytes) noexcept;
  std::uint64_t value() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Incremental 128-bit hash; hex() has 32 lower-case digits.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  void update(const void* data, std::size_t bytes) noexcept;
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string hash_hex(std::string_view bytes);
// Reads the whole file; throws Error(data) naming the file and the system's reason.
std::string hash_file(const std::filesystem::path& path);

}  // namespace ananke
