#include "runtime/base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "runtime/base/error.h"

namespace ananke {

struct Hasher::State {
  XXH3_state_t value;
};

std::uint64_t hash64(std::string_view bytes, std::uint64_t seed) noexcept {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

struct Hasher64::State {
  XXH3_state_t value;
};

Hasher64::Hasher64() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->value); }
Hasher64::~Hasher64() = default;
void Hasher64::update(const void* data, std::size_t bytes) noexcept { XXH3_64bits_update(&state_->value, data, bytes); }
std::uint64_t Hasher64::value() const noexcept { return XXH3_64bits_digest(&state_->value); }

Hasher::Hasher() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->value); }
Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;

void Hasher::update(const void* data, std::size_t bytes) noexcept { XXH3_128bits_update(&state_->value, data, bytes); }

std::string Hasher::hex() const {
  const XXH128_hash_t digest = XXH3_128bits_digest(&state_->value);
  return fmt::format("{:016x}{:016x}", digest.high64, digest.low64);
}

std::string hash_hex(std::string_view bytes) {
  Hasher hasher;
  hasher.update(bytes.data(), bytes.size());
  return hasher.hex();
}

std::string hash_file(const std::filesystem::path& path) {
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) fail(ErrorKind::data, "cannot open {} to hash it: {}", path.string(), std::strerror(errno));
  Hasher hasher;
  std::vector<char> chunk(1 << 20);
  while (std::size_t got = std::fread(chunk.data(), 1, chunk.size(), file.get())) hasher.update(chunk.data(), got);
  if (std::ferror(file.get()))
    fail(ErrorKind::data, "cannot read {} to hash it: {}", path.string(), std::strerror(errno));
  return hasher.hex();
}

}  // namespace ananke
