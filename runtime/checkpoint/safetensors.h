// Safetensors: 8 bytes of header length (little endian), a JSON header {name: {dtype, shape, data_offsets}}, the bytes.
// https://github.com/huggingface/safetensors#format. Everything the header claims is checked when a file is opened;
// every refusal is an Error(data) that names the file and the tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ananke {

struct SafetensorsInfo {
  std::string dtype;                // as the header spells it: "F32", "BF16", "I64"
  std::vector<std::int64_t> shape;  // empty: a scalar
  std::int64_t elements = 0;
  std::uint64_t bytes = 0;
};

std::string to_string(std::span<const std::int64_t> shape);  // "[128, 64]"

// Reads tensors by name from one file, or from the files of a folder. Bytes are read when asked for; several threads
// may read at once.
class Safetensors {
 public:
  // A file, or a folder as Hugging Face lays it out: model.safetensors, or model.safetensors.index.json with its
  // shards.
  static Safetensors open(const std::filesystem::path& path);
  ~Safetensors();
  Safetensors(Safetensors&&) noexcept;
  Safetensors& operator=(Safetensors&&) noexcept;

  const std::string& path() const noexcept { return path_; }  // as given, for messages
  std::vector<std::string> names() const;                     // sorted
  bool contains(std::string_view name) const noexcept;
  // Throws when there is no such tensor, with the nearest name that there is.
  const SafetensorsInfo& info(std::string_view name) const;

  // Elements [begin, begin + out.size()) of the tensor in row-major order. F32, F64, BF16 and F16 are converted.
  void read_f32(std::string_view name, std::span<float> out, std::int64_t begin = 0) const;
  // Likewise from I32 and I64; a value that does not fit is refused.
  void read_i32(std::string_view name, std::span<std::int32_t> out, std::int64_t begin = 0) const;
  std::vector<float> read_f32(std::string_view name) const;  // all of it
  std::vector<std::int32_t> read_i32(std::string_view name) const;

 private:
  struct File;
  struct Tensor {
    SafetensorsInfo info;
    const File* file = nullptr;
    std::uint64_t offset = 0;  // in the file
  };
  explicit Safetensors(std::string path);
  void add_file(const std::filesystem::path& path);
  void add_folder(const std::filesystem::path& folder);
  const Tensor& find(std::string_view name) const;
  // Hands the tensor's raw bytes on in pieces: use(piece, first element of the piece, elements).
  template <class Use>
  void for_each_piece(const Tensor& tensor, std::int64_t begin, std::size_t count, Use use) const;
  void check_range(std::string_view name, const Tensor& tensor, std::int64_t begin, std::size_t count) const;

  std::string path_;
  std::vector<std::unique_ptr<File>> files_;
  std::map<std::string, Tensor, std::less<>> tensors_;
};

}  // namespace ananke
