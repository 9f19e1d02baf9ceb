#include "runtime/checkpoint/safetensors_writer.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <set>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace ananke {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are stored little endian and written as they are");

std::uint64_t elements_of(const std::vector<std::int64_t>& shape) {
  std::uint64_t elements = 1;
  for (const std::int64_t size : shape) elements *= static_cast<std::uint64_t>(size);
  return elements;
}

}  // namespace

const char* name_of(SafetensorsType type) noexcept {
  switch (type) {
    case SafetensorsType::bf16: return "BF16";
    case SafetensorsType::i32: return "I32";
    case SafetensorsType::f32: break;
  }
  return "F32";
}

std::uint64_t element_bytes(SafetensorsType type) noexcept { return type == SafetensorsType::bf16 ? 2 : 4; }

std::uint16_t to_bf16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  // Rounding could carry a NaN's fraction over into the sign, or leave none of it: it becomes a quiet one.
  if (value != value) return static_cast<std::uint16_t>(bits >> 16 | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsEntry> entries)
    : target_(path), entries_(std::move(entries)), file_(std::fopen(target_.partial().c_str(), "wb"), std::fclose) {
  if (!file_) fail(ErrorKind::resource, "cannot create {}: {}", target_.partial().string(), std::strerror(errno));
  std::set<std::string_view> names;
  for (const SafetensorsEntry& entry : entries_) {
    const bool twice = !names.insert(entry.name).second;
    if (!twice && !entry.name.empty() && entry.name != "__metadata__") continue;
    fail(ErrorKind::data, "cannot write {}: the tensor name '{}' is {}", path.string(), entry.name,
         twice ? "given twice" : "reserved");
  }
  write_header();
  if (!entries_.empty()) left_ = elements_of(entries_[0].shape);
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write_header() {
  std::string header = R"({"__metadata__":{"format":"pt"})";
  std::uint64_t offset = 0;
  for (const SafetensorsEntry& entry : entries_) {
    const std::uint64_t end = offset + elements_of(entry.shape) * element_bytes(entry.type);
    header += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", json_quoted(entry.name),
                          name_of(entry.type), fmt::join(entry.shape, ","), offset, end);
    offset = end;
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');  // tensors begin aligned to 8
  const std::uint64_t length = header.size();
  put(&length, sizeof length);
  put(header.data(), header.size());
}

void SafetensorsWriter::put(const void* data, std::size_t bytes) {
  if (bytes > 0 && std::fwrite(data, 1, bytes, file_.get()) != bytes) {
    fail(ErrorKind::resource, "cannot write {} bytes to {}: {}", bytes, target_.partial().string(),
         std::strerror(errno));
  }
}

// Counts elements off the current tensor; a tensor without elements is passed by itself.
void SafetensorsWriter::advance(std::size_t elements, bool integers) {
  while (current_ < entries_.size() && left_ == 0) {
    if (++current_ < entries_.size()) left_ = elements_of(entries_[current_].shape);
  }
  if (elements == 0) return;
  ANANKE_CHECK(current_ < entries_.size() && elements <= left_, "{} elements past the end of tensor {} of {}", elements,
               current_, target_.partial().string());
  ANANKE_CHECK(integers == (entries_[current_].type == SafetensorsType::i32), "{} is {}", entries_[current_].name,
               name_of(entries_[current_].type));
  left_ -= elements;
}

void SafetensorsWriter::append(std::span<const float> values) {
  advance(values.size(), false);
  if (values.empty() || entries_[current_].type == SafetensorsType::f32) {
    return put(values.data(), values.size_bytes());
  }
  constexpr std::size_t piece = std::size_t{1} << 16;
  for (std::size_t done = 0; done < values.size(); done += piece) {
    const std::span<const float> now = values.subspan(done, std::min(piece, values.size() - done));
    converted_.resize(now.size());
    std::transform(now.begin(), now.end(), converted_.begin(), to_bf16);
    put(converted_.data(), converted_.size() * sizeof(std::uint16_t));
  }
}

void SafetensorsWriter::append(std::span<const std::int32_t> values) {
  advance(values.size(), true);
  put(values.data(), values.size_bytes());
}

void SafetensorsWriter::finish() {
  advance(0, false);
  ANANKE_CHECK(current_ == entries_.size(), "{} elements of {} were not written", left_, entries_[current_].name);
  if (std::fclose(file_.release()) != 0) {
    fail(ErrorKind::resource, "cannot write {}: {}", target_.partial().string(), std::strerror(errno));
  }
  target_.commit();
}

void write_safetensors(const std::filesystem::path& path, std::vector<SafetensorsOutput> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  std::vector<SafetensorsEntry> entries;
  for (const SafetensorsOutput& tensor : tensors) {
    const bool integers = std::holds_alternative<std::span<const std::int32_t>>(tensor.data);
    const std::size_t given = std::visit([](const auto& data) { return data.size(); }, tensor.data);
    if (elements_of(tensor.shape) != given) {
      fail(ErrorKind::data, "cannot write {}: tensor {} has shape {}, but {} elements are given", path.string(),
           tensor.name, to_string(tensor.shape), given);
    }
    entries.push_back({tensor.name, integers ? SafetensorsType::i32 : SafetensorsType::f32, tensor.shape});
  }
  SafetensorsWriter file(path, std::move(entries));
  for (const SafetensorsOutput& tensor : tensors) {
    std::visit([&](const auto& data) { file.append(data); }, tensor.data);
  }
  file.finish();
}

}  // namespace ananke
