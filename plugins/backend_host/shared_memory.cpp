#include "plugins/backend_host/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/units.h"

namespace ananke {
namespace {

constexpr off_t file_length = off_t{1} << 43;
constexpr std::size_t step = std::size_t{256} << 10;

struct Address {
  std::string host;
  pid_t pid;
  int fd;
};

Address parse(const std::string& text) {
  const auto first = text.find(' '), second = text.find(' ', first + 1);
  ANANKE_CHECK(first != std::string::npos && second != std::string::npos, "'{}' is no address of shared memory", text);
  return {text.substr(0, first), std::atoi(text.c_str() + first + 1), std::atoi(text.c_str() + second + 1)};
}

// The kernel's boot and the namespace in which process ids mean the same.
const std::string& this_host() {
  static const std::string host = [] {
    std::string boot;
    std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
    char space[128] = "";
    const ssize_t length = readlink("/proc/self/ns/pid", space, sizeof space - 1);
    return boot + "/" + (length > 0 ? std::string(space, static_cast<std::size_t>(length)) : "");
  }();
  return host;
}

Address here(const std::string& text) {
  Address address = parse(text);
  if (address.host != this_host() || this_host().starts_with("/") || this_host().ends_with("/")) {
    fail(ErrorKind::resource, "process {} runs on another host or in another container", address.pid);
  }
  return address;
}

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping::~Mapping() {
  if (data_) munmap(data_, bytes_);
}

void Mapping::grow(const FileDescriptor& file, off_t offset, std::size_t bytes, bool writes) {
  if (bytes <= bytes_) return;
  const std::size_t wanted = (bytes + step - 1) / step * step;
  void* mapped = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), offset);
  if (mapped == MAP_FAILED) {
    fail(ErrorKind::resource, "cannot map {} of shared memory: {}", format_bytes(wanted), std::strerror(errno));
  }
  if (data_) munmap(data_, bytes_);
  data_ = static_cast<std::byte*>(mapped);
  bytes_ = wanted;
  // Without it a lack of memory ends the process by SIGBUS. Older kernels do not know it.
  if (madvise(data_, wanted, writes ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) != 0 && errno != EINVAL) {
    fail(ErrorKind::resource, "cannot get {} of shared memory: {}", format_bytes(wanted), std::strerror(errno));
  }
}

FileDescriptor make_shared_file() {
  FileDescriptor file(memfd_create("ananke collectives", MFD_CLOEXEC));
  if (!file || ftruncate(file.get(), file_length) != 0) {
    fail(ErrorKind::resource, "cannot make shared memory: {}", std::strerror(errno));
  }
  return file;
}

std::string shared_address(const FileDescriptor& file) {
  return fmt::format("{} {} {}", this_host(), getpid(), file.get());
}

FileDescriptor open_shared(const std::string& text) {
  const Address address = here(text);
  const std::string path = fmt::format("/proc/{}/fd/{}", address.pid, address.fd);
  FileDescriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!file) fail(ErrorKind::resource, "cannot open {}: {}", path, std::strerror(errno));
  return file;
}

FileDescriptor watch_process(const std::string& text) {
  const Address address = here(text);
  FileDescriptor process(static_cast<int>(syscall(SYS_pidfd_open, address.pid, 0)));
  if (!process) fail(ErrorKind::resource, "cannot watch process {}: {}", address.pid, std::strerror(errno));
  return process;
}

pid_t process_of(const std::string& address) { return parse(address).pid; }

}  // namespace ananke
