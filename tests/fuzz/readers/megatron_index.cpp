#include <array>

#include "runtime/data/megatron_dataset.h"
#include "tests/fuzz/target.h"

namespace ananke::fuzz {
namespace {

// NAME.bin: 512 bytes, whose first are small numbers of any width.
std::string data_file() {
  std::string bytes(512, '\0');
  for (std::size_t i = 0; i < bytes.size(); i += 8) bytes[i] = static_cast<char>(i / 8);
  for (std::size_t i = 256; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i);
  return bytes;
}

void read_all(const std::filesystem::path& file) {
  MegatronDataset dataset(file);
  std::array<std::int32_t, 100> tokens{};
  std::uint64_t ended = 0;
  for (MegatronDataset::Part part; dataset.next(50'000, tokens, part); ended += part.ends_document) {
    require(part.count <= tokens.size(), "more tokens than were asked for");
    for (std::size_t i = 0; i < part.count; ++i) require(tokens[i] >= 0 && tokens[i] < 50'000, "a token out of range");
  }
  require(ended == dataset.documents(), "another number of documents than the index says");
}

}  // namespace
}  // namespace ananke::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ananke;
  using namespace ananke::fuzz;
  static const Folder folder;
  static const auto tokens = folder.write("input.bin", data_file());
  const auto file = folder.write("input.idx", text_of(data, size));
  expect_value_or_error(ErrorKind::data, (folder.path() / "input.").string(), [&] { read_all(file); });
  return 0;
}
