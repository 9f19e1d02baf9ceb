#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/replace_file.h"
#include "runtime/checkpoint/safetensors.h"

namespace ananke {
namespace {

struct Bytes {
  const char* dtype;
  const void* data;
  std::size_t elements;
  std::size_t bytes;
};

Bytes bytes_of(const SafetensorsOutput& tensor) {
  if (const auto* f32 = std::get_if<std::span<const float>>(&tensor.data)) {
    return {"F32", f32->data(), f32->size(), f32->size_bytes()};
  }
  const auto& i32 = std::get<std::span<const std::int32_t>>(tensor.data);
  return {"I32", i32.data(), i32.size(), i32.size_bytes()};
}

std::string header_of(const std::filesystem::path& path, const std::vector<SafetensorsOutput>& tensors) {
  std::string header = R"({"__metadata__":{"format":"pt"})";
  std::uint64_t offset = 0;
  const std::string* before = nullptr;
  for (const SafetensorsOutput& tensor : tensors) {
    const Bytes bytes = bytes_of(tensor);
    std::uint64_t elements = 1;
    for (const std::int64_t size : tensor.shape) elements *= static_cast<std::uint64_t>(size);
    if (elements != bytes.elements) {
      fail(ErrorKind::data, "cannot write {}: tensor {} has shape {}, but {} elements are given", path.string(),
           tensor.name, to_string(tensor.shape), bytes.elements);
    }
    if (tensor.name.empty() || tensor.name == "__metadata__" || (before && *before == tensor.name)) {
      fail(ErrorKind::data, "cannot write {}: the tensor name '{}' is {}", path.string(), tensor.name,
           before && *before == tensor.name ? "given twice" : "reserved");
    }
    before = &tensor.name;
    header += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", json_quoted(tensor.name),
                          bytes.dtype, fmt::join(tensor.shape, ","), offset, offset + bytes.bytes);
    offset += bytes.bytes;
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');  // tensors begin aligned to 8
  return header;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::vector<SafetensorsOutput> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  const std::string header = header_of(path, tensors);
  ReplacedFile target(path);
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(target.partial().c_str(), "wb"), std::fclose);
  if (!file) fail(ErrorKind::resource, "cannot create {}: {}", target.partial().string(), std::strerror(errno));
  const auto put = [&](const void* data, std::size_t bytes) {
    if (bytes > 0 && std::fwrite(data, 1, bytes, file.get()) != bytes) {
      fail(ErrorKind::resource, "cannot write {} bytes to {}: {}", bytes, target.partial().string(),
           std::strerror(errno));
    }
  };
  const std::uint64_t length = header.size();
  put(&length, sizeof length);
  put(header.data(), header.size());
  for (const SafetensorsOutput& tensor : tensors) {
    const Bytes bytes = bytes_of(tensor);
    put(bytes.data, bytes.bytes);
  }
  if (std::fclose(file.release()) != 0) {
    fail(ErrorKind::resource, "cannot write {}: {}", target.partial().string(), std::strerror(errno));
  }
  target.commit();
}

}  // namespace ananke
