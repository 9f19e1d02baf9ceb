#include "runtime/data/token_store.h"

#include <algorithm>
#include <random>
#include <vector>

#include "tests/fuzz/target.h"

namespace ananke::fuzz {
namespace {

void read_all(const std::filesystem::path& file) {
  const TokenStore store(file);
  std::uint64_t tokens = 0;
  for (std::uint64_t document = 0; document < store.info().documents && document < 1000; ++document) {
    std::vector<std::int32_t> out(std::min<std::uint64_t>(store.length(document), 1000));
    store.read(document, store.length(document) - out.size(), out);
    for (const std::int32_t token : out) {
      require(token >= 0 && static_cast<std::uint64_t>(token) < store.info().vocabulary_size, "a token out of range");
    }
    tokens += store.length(document);
  }
  require(tokens <= store.info().tokens, "documents of more tokens than there are");
}

}  // namespace
}  // namespace ananke::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ananke;
  using namespace ananke::fuzz;
  static const Folder folder;
  const auto file = folder.write("input.h5", text_of(data, size));
  expect_value_or_error(ErrorKind::data, file.string(), [&] { read_all(file); });
  return 0;
}

// libhdf5 1.10 leaks 240 bytes for each chunk whose checksum does not fit.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5\n"; }

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

// A store is mostly empty space in its chunks: a window near something is changed, and the rest stays in its place.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  if (size < 1024) return LLVMFuzzerMutate(data, size, most);
  std::minstd_rand random(seed);
  const auto filled = [](std::uint8_t byte) { return byte != 0; };
  const std::uint8_t* found = std::find_if(data + random() % size, data + size, filled);
  if (found == data + size) found = std::find_if(data, data + size, filled);
  const std::size_t begin = std::min<std::size_t>(static_cast<std::size_t>(found - data) + random() % 256, size - 1);
  std::vector<std::uint8_t> window(data + begin, data + std::min<std::size_t>(size, begin + (8U << random() % 6)));
  const std::size_t bytes = LLVMFuzzerMutate(window.data(), window.size(), window.size());
  std::copy_n(window.begin(), bytes, data + begin);
  return size;
}
