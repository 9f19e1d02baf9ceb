#include "runtime/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>

#include "tests/fuzz/target.h"

namespace ananke::fuzz {
namespace {

void read_all(const std::filesystem::path& file) {
  const Safetensors tensors = Safetensors::open(file);
  std::uint64_t bytes = 0;
  for (const std::string& name : tensors.names()) {
    const SafetensorsInfo& info = tensors.info(name);
    bytes += info.bytes;
    for (const bool whole : {false, true}) {
      expect_value_or_error(ErrorKind::data, "", [&] {
        const std::size_t got = whole ? tensors.read_i32(name).size() : tensors.read_f32(name).size();
        require(got == static_cast<std::size_t>(info.elements), "another number of elements than the header says");
      });
    }
  }
  require(bytes < std::filesystem::file_size(file), "tensors larger than their file");
  expect_value_or_error(ErrorKind::data, file.string(), [&] { tensors.info("no such tensor"); });
}

}  // namespace
}  // namespace ananke::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ananke;
  using namespace ananke::fuzz;
  static const Folder folder;
  const auto file = folder.write("model.safetensors", text_of(data, size));
  expect_value_or_error(ErrorKind::data, file.string(), [&] { read_all(file); });
  return 0;
}

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

// The header changes as text, the data stay, and the header's length is right again.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned) {
  std::uint64_t length = 0;
  if (size < 8 || most < 16) return LLVMFuzzerMutate(data, size, most);
  std::memcpy(&length, data, 8);
  if (length > size - 8) return LLVMFuzzerMutate(data, size, most);
  const std::string tensors(data + 8 + length, data + size);
  const std::size_t header = LLVMFuzzerMutate(data + 8, length, most - 8);
  length = header;
  std::memcpy(data, &length, 8);
  const std::size_t kept = std::min(tensors.size(), most - 8 - header);
  std::copy_n(tensors.begin(), kept, data + 8 + header);
  return 8 + header + kept;
}
