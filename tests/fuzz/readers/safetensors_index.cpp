#include <cstring>

#include "runtime/checkpoint/safetensors.h"
#include "tests/fuzz/target.h"

namespace ananke::fuzz {
namespace {

// A file of two tensors, NAME.a and NAME.b.
std::string shard(const std::string& name) {
  const std::string header = fmt::format(
      R"({{"{0}.a":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}},"{0}.b":{{"dtype":"U8","shape":[],"data_offsets":[8,9]}}}})",
      name);
  const std::uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + "123456789";
}

}  // namespace
}  // namespace ananke::fuzz

// model.safetensors.index.json beside two shards.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ananke;
  using namespace ananke::fuzz;
  static const Folder folder;
  static const auto one = folder.write("one.safetensors", shard("one"));
  static const auto two = folder.write("two.safetensors", shard("two"));
  folder.write("model.safetensors.index.json", text_of(data, size));
  expect_value_or_error(ErrorKind::data, folder.path().string(), [&] {
    const Safetensors tensors = Safetensors::open(folder.path());
    require(tensors.names().size() <= 4, "more tensors than there are");
  });
  return 0;
}
