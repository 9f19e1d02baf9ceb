#include "tests/file_faults.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <sstream>
#include <string_view>

namespace ananke {
namespace {

std::mutex mutex;
FileFault current;
std::atomic<bool> armed = false;
std::atomic<int> strikes = 0;

[[maybe_unused]] const bool from_environment = [] {
  const char* text = std::getenv("ANANKE_FILE_FAULT");
  if (text == nullptr) return false;
  FileFault fault;
  std::istringstream(text) >> fault.operation >> fault.error >> fault.part;
  set_file_fault(fault);
  return true;
}();

bool fits(std::string_view path, std::string_view part) {
  if (part.ends_with('$')) return path.ends_with(part.substr(0, part.size() - 1));
  return path.find(part) != path.npos;
}

// Whether the operation must fail, with errno set.
bool strikes_at(const char* operation, const char* path) {
  if (!armed) return false;
  int error = 0;
  {
    std::lock_guard lock(mutex);
    if (!armed || current.operation != operation || !fits(path, current.part)) return false;
    error = current.error;
  }
  ++strikes;
  while (error == 0) ::pause();
  errno = error;
  return true;
}

bool strikes_at(const char* operation, int descriptor) {
  if (!armed) return false;
  const int before = errno;
  char link[32], path[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t size = ::readlink(link, path, sizeof path - 1);
  errno = before;
  if (size < 0) return false;
  path[size] = 0;
  return strikes_at(operation, path);
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

void set_file_fault(const FileFault& fault) {
  std::lock_guard lock(mutex);
  current = fault;
  strikes = 0;
  armed = true;
}
void clear_file_fault() { armed = false; }
int file_faults() { return strikes; }

}  // namespace ananke

// In place of libc's, for every library of the process.
extern "C" {

ssize_t write(int descriptor, const void* data, size_t size) {
  static const auto real = ananke::next<ssize_t (*)(int, const void*, size_t)>("write");
  return ananke::strikes_at("write", descriptor) ? -1 : real(descriptor, data, size);
}
ssize_t pwrite(int descriptor, const void* data, size_t size, off_t at) {
  static const auto real = ananke::next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  return ananke::strikes_at("write", descriptor) ? -1 : real(descriptor, data, size, at);
}
ssize_t pwrite64(int descriptor, const void* data, size_t size, off64_t at) {
  static const auto real = ananke::next<ssize_t (*)(int, const void*, size_t, off64_t)>("pwrite64");
  return ananke::strikes_at("write", descriptor) ? -1 : real(descriptor, data, size, at);
}
int fsync(int descriptor) {
  static const auto real = ananke::next<int (*)(int)>("fsync");
  return ananke::strikes_at("sync", descriptor) ? -1 : real(descriptor);
}
// The descriptor is closed all the same, as the system does it.
int close(int descriptor) {
  static const auto real = ananke::next<int (*)(int)>("close");
  const bool strikes = ananke::strikes_at("close", descriptor);
  const int error = errno;
  const int result = real(descriptor);
  if (strikes) errno = error;
  return strikes ? -1 : result;
}
int rename(const char* from, const char* to) noexcept {
  static const auto real = ananke::next<int (*)(const char*, const char*)>("rename");
  return ananke::strikes_at("rename", from) || ananke::strikes_at("rename", to) ? -1 : real(from, to);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  static const auto real = ananke::next<int (*)(int, const char*, int, const char*, unsigned)>("renameat2");
  return ananke::strikes_at("rename", from) || ananke::strikes_at("rename", to)
             ? -1
             : real(from_folder, from, to_folder, to, flags);
}

}  // extern "C"
