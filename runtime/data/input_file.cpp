#include "runtime/data/input_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/base/error.h"

namespace ananke {

struct InputFile::State {
  std::string path;
  int plain = -1;
  gzFile compressed = nullptr;
  std::uint64_t bytes_on_disk = 0;

  ~State() {
    if (plain >= 0) ::close(plain);
    if (compressed != nullptr) ::gzclose_r(compressed);
  }
  [[noreturn]] void refuse(const std::string& what) const { fail(ErrorKind::data, "cannot read {}: {}", path, what); }
  std::size_t read_plain(char* out, std::size_t bytes);
  std::size_t read_compressed(char* out, std::size_t bytes);
};

std::size_t InputFile::State::read_plain(char* out, std::size_t bytes) {
  std::size_t total = 0;
  while (total < bytes) {
    const ssize_t got = ::read(plain, out + total, bytes - total);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(std::strerror(errno));
    if (got == 0) break;
    total += static_cast<std::size_t>(got);
  }
  bytes_on_disk += total;
  return total;
}

std::size_t InputFile::State::read_compressed(char* out, std::size_t bytes) {
  std::size_t total = 0;
  while (total < bytes) {
    const auto step = static_cast<unsigned>(std::min<std::size_t>(bytes - total, 1U << 30));
    const int got = ::gzread(compressed, out + total, step);
    int code = Z_OK;
    const char* reason = ::gzerror(compressed, &code);
    // zlib hands out what it has and then calls the end unexpected, without failing.
    if (code == Z_BUF_ERROR) refuse("the compressed file is cut short; copy or download it again");
    if (got < 0 || code != Z_OK) {
      refuse(code == Z_ERRNO ? std::strerror(errno)
                             : fmt::format("the compressed file is damaged: {}; copy or download it again", reason));
    }
    if (::gzdirect(compressed) == 1) refuse("it is not compressed by gzip, as its name says");
    if (got == 0) break;
    total += static_cast<std::size_t>(got);
  }
  bytes_on_disk = static_cast<std::uint64_t>(std::max<z_off_t>(0, ::gzoffset(compressed)));
  return total;
}

InputFile::InputFile(const std::filesystem::path& path) : state_(std::make_unique<State>()) {
  state_->path = path.string();
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail(ErrorKind::data, "cannot open {}: {}", path.string(), std::strerror(errno));
  if (path.extension() != ".gz") {
    state_->plain = file;
    return;
  }
  state_->compressed = ::gzdopen(file, "rb");
  if (state_->compressed == nullptr) {
    ::close(file);
    fail(ErrorKind::resource, "cannot decompress {}: out of memory", path.string());
  }
  ::gzbuffer(state_->compressed, 1U << 17);
}

InputFile::~InputFile() = default;
InputFile::InputFile(InputFile&&) noexcept = default;
InputFile& InputFile::operator=(InputFile&&) noexcept = default;

std::size_t InputFile::read(char* out, std::size_t bytes) {
  return state_->compressed != nullptr ? state_->read_compressed(out, bytes) : state_->read_plain(out, bytes);
}
std::uint64_t InputFile::bytes_on_disk() const noexcept { return state_->bytes_on_disk; }
const std::string& InputFile::path() const noexcept { return state_->path; }

}  // namespace ananke
