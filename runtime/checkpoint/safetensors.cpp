#include "runtime/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/nearest.h"
#include "runtime/base/printable.h"

namespace ananke {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are stored little endian and read as they are");

// The limit of the reference implementation; a longer header is a damaged length.
constexpr std::uint64_t longest_header = 100'000'000;
constexpr std::size_t piece_bytes = std::size_t{1} << 20;

// Bytes per element; 0: not a dtype of the format (or one of less than a byte, which nothing here can use).
std::uint64_t element_bytes(std::string_view dtype) {
  static constexpr std::pair<std::string_view, std::uint64_t> known[] = {
      {"BOOL", 1}, {"U8", 1},   {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"I16", 2}, {"U16", 2},
      {"F16", 2},  {"BF16", 2}, {"I32", 4}, {"U32", 4},     {"F32", 4},     {"F64", 8},     {"I64", 8}, {"U64", 8},
  };
  for (const auto& [name, bytes] : known) {
    if (name == dtype) return bytes;
  }
  return 0;
}

float bf16_to_f32(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

float f16_to_f32(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000U} << 16;
  const std::uint32_t exponent = bits >> 10 & 0x1FU;
  const std::uint32_t fraction = bits & 0x3FFU;
  if (exponent == 0) {  // zero or subnormal: fraction x 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

}  // namespace

std::string to_string(std::span<const std::int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

struct Safetensors::File {
  std::string path;
  int descriptor = -1;
  std::uint64_t bytes = 0;

  explicit File(const std::filesystem::path& from) : path(from.string()) {
    descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) fail(ErrorKind::data, "cannot open {}: {}", path, std::strerror(errno));
    struct stat status {};
    if (::fstat(descriptor, &status) != 0) fail(ErrorKind::data, "cannot look at {}: {}", path, std::strerror(errno));
    if (!S_ISREG(status.st_mode)) fail(ErrorKind::data, "{} is not a file", path);
    bytes = static_cast<std::uint64_t>(status.st_size);
  }
  ~File() {
    if (descriptor >= 0) ::close(descriptor);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  void read(void* out, std::uint64_t count, std::uint64_t offset) const {
    auto* to = static_cast<char*>(out);
    while (count > 0) {
      const ssize_t got = ::pread(descriptor, to, count, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail(ErrorKind::data, "cannot read {}: {}", path, std::strerror(errno));
      if (got == 0) fail(ErrorKind::data, "{} ends at byte {}: it was cut while it was being read", path, offset);
      to += got;
      offset += static_cast<std::uint64_t>(got);
      count -= static_cast<std::uint64_t>(got);
    }
  }

  std::string read_header() const {
    if (bytes < 8)
      fail(ErrorKind::data, "{} has {} bytes: not a safetensors file (8 bytes of header length)", path, bytes);
    std::uint64_t length = 0;
    read(&length, sizeof length, 0);
    if (length > longest_header || length > bytes - 8) {
      fail(ErrorKind::data,
           "{}: the header would have {} bytes, but the file has {}: cut short, or not a safetensors file", path,
           length, bytes);
    }
    std::string header(length, '\0');
    read(header.data(), length, 8);
    if (!header.starts_with('{')) fail(ErrorKind::data, "{} is not a safetensors file: its header is not JSON", path);
    return header;
  }
};

namespace {

[[noreturn]] void refuse(const std::string& file, std::string_view tensor, std::string_view what) {
  fail(ErrorKind::data, "{}: tensor {}: {}", file, printable(tensor, 200), what);
}

// What the header says about one tensor, checked against itself; `begin` and `end` count from the header's end.
SafetensorsInfo parse_info(const std::string& file, const std::string& name, const Json& entry, std::uint64_t& begin,
                           std::uint64_t& end) {
  const Json* dtype = entry.find("dtype");
  const Json* shape = entry.find("shape");
  const Json* offsets = entry.find("data_offsets");
  if (!dtype || !shape || !offsets || entry.members().size() != 3 || !dtype->is(Json::Type::string) ||
      !shape->is(Json::Type::array) || !offsets->is(Json::Type::array) || offsets->items().size() != 2) {
    refuse(file, name, fmt::format("needs dtype, shape and data_offsets and nothing else, has {}", entry.brief()));
  }
  SafetensorsInfo info;
  info.dtype = dtype->text();
  const std::uint64_t size = element_bytes(info.dtype);
  if (size == 0) refuse(file, name, fmt::format("unknown dtype {}", dtype->brief()));
  constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max() / 8;
  std::uint64_t elements = 1;
  for (const Json& item : shape->items()) {
    const auto length = item.as_unsigned();
    if (!length || __builtin_mul_overflow(elements, *length, &elements) || elements > most || *length > most) {
      refuse(file, name, fmt::format("shape {} is impossible", shape->brief()));
    }
    info.shape.push_back(static_cast<std::int64_t>(*length));
  }
  const auto first = offsets->items()[0].as_unsigned();
  const auto last = offsets->items()[1].as_unsigned();
  if (!first || !last || *first > *last)
    refuse(file, name, fmt::format("data_offsets {} are impossible", offsets->brief()));
  begin = *first;
  end = *last;
  info.elements = static_cast<std::int64_t>(elements);
  info.bytes = elements * size;
  if (end - begin != info.bytes) {
    refuse(file, name,
           fmt::format("{} {} takes {} bytes, but its data_offsets {} span {}", info.dtype, shape->brief(), info.bytes,
                       offsets->brief(), end - begin));
  }
  return info;
}

}  // namespace

Safetensors::Safetensors(std::string path) : path_(std::move(path)) {}
Safetensors::~Safetensors() = default;
Safetensors::Safetensors(Safetensors&&) noexcept = default;
Safetensors& Safetensors::operator=(Safetensors&&) noexcept = default;

Safetensors Safetensors::open(const std::filesystem::path& path) {
  Safetensors result(path.string());
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    result.add_folder(path);
  } else {
    result.add_file(path);
  }
  return result;
}

void Safetensors::add_file(const std::filesystem::path& path) {
  files_.push_back(std::make_unique<File>(path));
  const File& file = *files_.back();
  const std::string header = file.read_header();
  const Json json = Json::parse(header, file.path);
  const std::uint64_t data = 8 + header.size();
  struct Range {
    std::uint64_t begin, end;
    std::string_view name;
  };
  std::vector<Range> ranges;
  for (const auto& [name, entry] : json.members()) {
    if (name == "__metadata__") continue;
    Range range{0, 0, name};
    SafetensorsInfo info = parse_info(file.path, name, entry, range.begin, range.end);
    if (range.end > file.bytes - data) {
      refuse(file.path, name,
             fmt::format("ends at byte {}, but the file has {} bytes: cut short", data + range.end, file.bytes));
    }
    ranges.push_back(range);
    const std::uint64_t offset = data + range.begin;
    if (!tensors_.try_emplace(name, Tensor{std::move(info), &file, offset}).second) {
      refuse(file.path, name, fmt::format("stands in another file of {} too", path_));
    }
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return std::tie(a.begin, a.end) < std::tie(b.begin, b.end); });
  std::uint64_t expected = 0;
  for (const Range& range : ranges) {
    if (range.begin != expected) {
      refuse(file.path, range.name,
             fmt::format("begins at offset {}, but the tensor before it ends at {}: {}", range.begin, expected,
                         range.begin < expected ? "they overlap" : "there is a gap"));
    }
    expected = range.end;
  }
  if (expected != file.bytes - data) {
    fail(ErrorKind::data, "{}: {} bytes after the last tensor belong to none", file.path, file.bytes - data - expected);
  }
}

void Safetensors::add_folder(const std::filesystem::path& folder) {
  // transformers looks in this order too.
  if (std::filesystem::exists(folder / "model.safetensors")) return add_file(folder / "model.safetensors");
  const std::filesystem::path index = folder / "model.safetensors.index.json";
  if (!std::filesystem::exists(index)) {
    fail(ErrorKind::data, "{} holds neither model.safetensors nor model.safetensors.index.json", folder.string());
  }
  const File file(index);
  std::string text(file.bytes, '\0');
  file.read(text.data(), text.size(), 0);
  const Json json = Json::parse(text, index.string());
  const Json* map = json.find("weight_map");
  if (!map || !map->is(Json::Type::object)) fail(ErrorKind::data, "{} has no object weight_map", index.string());
  std::map<std::string, std::vector<std::string>> shards;
  for (const auto& [name, shard] : map->members()) {
    // A name with a path in it could reach outside the folder.
    if (!shard.is(Json::Type::string) || shard.text().empty() || shard.text().find('/') != std::string::npos) {
      refuse(index.string(), name, fmt::format("{} is not the name of a file of the folder", shard.brief()));
    }
    shards[shard.text()].push_back(name);
  }
  for (const auto& [shard, expected] : shards) {
    const std::size_t before = tensors_.size();
    add_file(folder / shard);
    for (const std::string& name : expected) {
      const auto found = tensors_.find(name);
      if (found == tensors_.end() || found->second.file != files_.back().get()) {
        refuse(index.string(), name, fmt::format("should be in {}, but is not", shard));
      }
    }
    if (tensors_.size() - before != expected.size()) {
      fail(ErrorKind::data, "{} holds {} tensors, but {} lists {} in it", (folder / shard).string(),
           tensors_.size() - before, index.string(), expected.size());
    }
  }
}

std::vector<std::string> Safetensors::names() const {
  std::vector<std::string> result;
  for (const auto& [name, tensor] : tensors_) result.push_back(name);
  return result;
}

bool Safetensors::contains(std::string_view name) const noexcept { return tensors_.find(name) != tensors_.end(); }

const Safetensors::Tensor& Safetensors::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  const std::string near = nearest_name(name, names());
  fail(ErrorKind::data, "{} has no tensor {}{}", path_, name, near.empty() ? "" : "; the nearest name is " + near);
}

const SafetensorsInfo& Safetensors::info(std::string_view name) const { return find(name).info; }

void Safetensors::check_range(std::string_view name, const Tensor& tensor, std::int64_t begin,
                              std::size_t count) const {
  const std::int64_t elements = tensor.info.elements;
  if (begin < 0 || begin > elements || count > static_cast<std::uint64_t>(elements - begin)) {
    refuse(path_, name, fmt::format("has {} elements, asked for {} from {}", elements, count, begin));
  }
}

template <class Use>
void Safetensors::for_each_piece(const Tensor& tensor, std::int64_t begin, std::size_t count, Use use) const {
  const std::uint64_t size = element_bytes(tensor.info.dtype);
  const std::size_t per_piece = piece_bytes / size;
  std::vector<std::byte> piece(std::min(count, per_piece) * size);
  for (std::size_t done = 0; done < count;) {
    const std::size_t now = std::min(per_piece, count - done);
    tensor.file->read(piece.data(), now * size, tensor.offset + (static_cast<std::uint64_t>(begin) + done) * size);
    use(piece.data(), done, now);
    done += now;
  }
}

namespace {

template <class T>
T element(const std::byte* bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

void Safetensors::read_f32(std::string_view name, std::span<float> out, std::int64_t begin) const {
  const Tensor& tensor = find(name);
  check_range(name, tensor, begin, out.size());
  const std::string& dtype = tensor.info.dtype;
  if (dtype == "F32") {
    return tensor.file->read(out.data(), out.size_bytes(),
                             tensor.offset + static_cast<std::uint64_t>(begin) * sizeof(float));
  }
  const auto convert = [&](auto from) {
    for_each_piece(tensor, begin, out.size(), [&](const std::byte* piece, std::size_t first, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) out[first + i] = from(piece, i);
    });
  };
  if (dtype == "BF16")
    return convert([](const std::byte* p, std::size_t i) { return bf16_to_f32(element<std::uint16_t>(p, i)); });
  if (dtype == "F16")
    return convert([](const std::byte* p, std::size_t i) { return f16_to_f32(element<std::uint16_t>(p, i)); });
  if (dtype == "F64")
    return convert([](const std::byte* p, std::size_t i) { return static_cast<float>(element<double>(p, i)); });
  refuse(tensor.file->path, name, fmt::format("is {}, but F32, F64, BF16 or F16 is needed", dtype));
}

void Safetensors::read_i32(std::string_view name, std::span<std::int32_t> out, std::int64_t begin) const {
  const Tensor& tensor = find(name);
  check_range(name, tensor, begin, out.size());
  if (tensor.info.dtype == "I32") {
    return tensor.file->read(out.data(), out.size_bytes(),
                             tensor.offset + static_cast<std::uint64_t>(begin) * sizeof(std::int32_t));
  }
  if (tensor.info.dtype != "I64") {
    refuse(tensor.file->path, name, fmt::format("is {}, but I32 or I64 is needed", tensor.info.dtype));
  }
  for_each_piece(tensor, begin, out.size(), [&](const std::byte* piece, std::size_t first, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto value = element<std::int64_t>(piece, i);
      if (value < std::numeric_limits<std::int32_t>::min() || value > std::numeric_limits<std::int32_t>::max()) {
        refuse(tensor.file->path, name,
               fmt::format("element {} is {}, which 32 bits do not hold", static_cast<std::size_t>(begin) + first + i,
                           value));
      }
      out[first + i] = static_cast<std::int32_t>(value);
    }
  });
}

std::vector<float> Safetensors::read_f32(std::string_view name) const {
  std::vector<float> out(static_cast<std::size_t>(info(name).elements));
  read_f32(name, out);
  return out;
}

std::vector<std::int32_t> Safetensors::read_i32(std::string_view name) const {
  std::vector<std::int32_t> out(static_cast<std::size_t>(info(name).elements));
  read_i32(name, out);
  return out;
}

}  // namespace ananke
