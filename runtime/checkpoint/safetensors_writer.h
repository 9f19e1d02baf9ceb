// Writing safetensors files: tensor by tensor with bounded memory, or small ones in one go.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/base/replace_file.h"
#include "runtime/checkpoint/safetensors.h"

namespace ananke {

enum class SafetensorsType : std::uint8_t { f32, bf16, i32 };
const char* name_of(SafetensorsType type) noexcept;          // "F32"
std::uint64_t element_bytes(SafetensorsType type) noexcept;  // 4
std::uint16_t to_bf16(float value) noexcept;                 // to nearest, ties to even; NaN stays NaN

struct SafetensorsEntry {
  std::string name;
  SafetensorsType type = SafetensorsType::f32;
  std::vector<std::int64_t> shape;
};

// One file under a temporary name until finish(): what dies before leaves nothing under the final one.
//
//   SafetensorsWriter file(path, entries);
//   for each entry, in their order: file.append(piece) until all its elements were given
//   file.finish();
class SafetensorsWriter {
 public:
  // Writes the header. Throws Error(data) for a name that is empty, reserved or given twice, Error(resource) when the
  // file cannot be written (as append and finish do).
  SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsEntry> entries);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // The next elements of the tensor being written (f32 or bf16, converted; i32). They must not pass its end.
  void append(std::span<const float> values);
  void append(std::span<const std::int32_t> values);
  // All tensors are whole: syncs the file and gives it its name.
  void finish();

 private:
  void write_header();
  void advance(std::size_t elements, bool integers);
  void put(const void* data, std::size_t bytes);

  ReplacedFile target_;
  std::vector<SafetensorsEntry> entries_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::size_t current_ = 0;  // entry being written
  std::uint64_t left_ = 0;   // its elements still to come
  std::vector<std::uint16_t> converted_;
};

struct SafetensorsOutput {
  std::string name;
  std::vector<std::int64_t> shape;
  std::variant<std::span<const float>, std::span<const std::int32_t>> data;  // F32 or I32; not owned
};

// Writes one file, tensors in order of their names, so that equal tensors give equal bytes. Throws as the writer does,
// and Error(data) for data that is not as long as the shape.
void write_safetensors(const std::filesystem::path& path, std::vector<SafetensorsOutput> tensors);

}  // namespace ananke
