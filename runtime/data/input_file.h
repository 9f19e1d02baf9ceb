// A file read from its beginning to its end, decompressed where its name ends in .gz.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace ananke {

class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(InputFile&&) noexcept;
  InputFile& operator=(InputFile&&) noexcept;
  // How many of the `bytes` were there: fewer at the end only. Throws Error(data), also for a .gz that is cut short,
  // damaged or not compressed.
  std::size_t read(char* out, std::size_t bytes);
  std::uint64_t bytes_on_disk() const noexcept;  // of those read so far, as they are in the file
  const std::string& path() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ananke
