// write_stores FOLDER: token stores to begin with. They are of today's format, and too large to be kept.
#include <cstdio>
#include <filesystem>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/data/token_store.h"

namespace {

void write(const std::filesystem::path& file, std::uint64_t vocabulary, const std::vector<std::size_t>& lengths) {
  ananke::TokenStoreWriter writer(file, "bytes", "0123456789abcdef", 0, vocabulary);
  std::int32_t next = 1;
  for (const std::size_t length : lengths) {
    std::vector<std::int32_t> document(length);
    for (std::int32_t& token : document) token = next++ % static_cast<std::int32_t>(vocabulary);
    writer.append(document);
    writer.end_document();
  }
  writer.finish("a folder of text", "fedcba9876543210", 12345);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::filesystem::path folder = argc == 2 ? argv[1] : ".";
    std::filesystem::create_directories(folder);
    write(folder / "small.h5", 256, {5, 0, 300, 1});
    write(folder / "empty.h5", 256, {});
    write(folder / "chunks.h5", 256, {70000, 1, 2, 3});
  } catch (const ananke::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
