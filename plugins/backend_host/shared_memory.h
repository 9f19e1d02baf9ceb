// Memory that processes of one host share: files without a name (memfd), opened by others through /proc. Nothing is
// left behind, however a process ends.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

namespace ananke {

// Owns a file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// A part of a shared file in this process's memory, from `offset` on; grows, never shrinks.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping();
  // At least `bytes`; the address may change. Pages are made at one go instead of by a fault each; `writes`: whether
  // this process is the one that writes. Error(resource) where there is no more memory.
  void grow(const FileDescriptor& file, off_t offset, std::size_t bytes, bool writes);
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// A new file, sparse and so long that every offset used here lies in it. Error(resource) naming what the system lacks.
FileDescriptor make_shared_file();

// What another process of this host needs to open the file while this process has it open: "HOST PID FD".
std::string shared_address(const FileDescriptor& file);
// Error(resource) saying why it cannot: another host or container, no right to, ended.
FileDescriptor open_shared(const std::string& address);
// Becomes readable when the process of the address ends. Error(resource) likewise.
FileDescriptor watch_process(const std::string& address);
pid_t process_of(const std::string& address);

}  // namespace ananke
