#include "runtime/checkpoint/shard_file.h"

#include <fcntl.h>
#include <hdf5.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/hdf5_lock.h"
#include "runtime/checkpoint/durable.h"

namespace ananke {
namespace {

// Holds the library for one thread, and keeps it from printing to standard error: errors are ours to report.
class Library {
 public:
  Library() : lock_(hdf5_mutex()) {
    H5Eget_auto2(H5E_DEFAULT, &print_, &data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~Library() { H5Eset_auto2(H5E_DEFAULT, print_, data_); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

 private:
  std::lock_guard<std::mutex> lock_;
  H5E_auto2_t print_ = nullptr;
  void* data_ = nullptr;
};

// One HDF5 identifier, closed by the function that fits it. Lives inside a Library's scope.
template <herr_t (*Close)(hid_t)>
class Id {
 public:
  explicit Id(hid_t value) : value_(value) {}
  ~Id() {
    if (value_ >= 0) Close(value_);
  }
  Id(const Id&) = delete;
  Id& operator=(const Id&) = delete;
  hid_t get() const noexcept { return value_; }
  bool close() { return Close(std::exchange(value_, -1)) >= 0; }

 private:
  hid_t value_;
};
using FileId = Id<H5Fclose>;
using Dataset = Id<H5Dclose>;
using Space = Id<H5Sclose>;
using Properties = Id<H5Pclose>;
using Attribute = Id<H5Aclose>;

// The innermost error of HDF5's stack; for a failed system call that is its text with "error message = '...'" in it.
std::string library_reason(const std::filesystem::path& file = {}, std::uint64_t needed = 0) {
  std::string text;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned depth, const H5E_error2_t* entry, void* into) -> herr_t {
        if (depth == 0 && entry->desc != nullptr) *static_cast<std::string*>(into) = entry->desc;
        return 0;
      },
      &text);
  int error = 0;
  if (const auto at = text.find("errno = "); at != std::string::npos) error = std::atoi(text.c_str() + at + 8);
  if (error != 0) return reason(error, file, needed);
  return text.empty() ? "HDF5 gives no reason" : "HDF5: " + text;
}

// Called right after the library: its next call, even a successful one, forgets the reason.
void require(bool success, const std::filesystem::path& file, std::string_view action) {
  if (!success) fail(ErrorKind::checkpoint, "cannot {} {}: {}", action, file.string(), library_reason(file));
}

// The newest format of HDF5 1.10, whichever library writes: all its metadata have checksums.
constexpr unsigned char superblock_version = 3;
void set_format(hid_t access) { H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110); }

// The library does not see the file before this has.
void check_superblock(const std::filesystem::path& path) {
  constexpr std::array<unsigned char, 8> signature = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
  std::array<char, 9> start{};
  std::ifstream file(path, std::ios::binary);
  file.read(start.data(), start.size());
  if (!file || std::memcmp(start.data(), signature.data(), signature.size()) != 0) {
    fail(ErrorKind::checkpoint, "{} is no HDF5 file", path.string());
  }
  if (const auto version = static_cast<unsigned char>(start[8]); version != superblock_version) {
    fail(ErrorKind::checkpoint,
         "{} has an HDF5 superblock of version {}; only version {} is read, the others are not safe against damage",
         path.string(), version, superblock_version);
  }
}

// No file locks: many cluster file systems refuse or hang on them, and nobody else opens a file of this name.
hid_t access_properties() {
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_file_locking(access, false, true);
  H5Pset_alignment(access, 65536, 4096);  // large datasets begin on a page
  set_format(access);
  return access;
}

// The library never lets go of a file whose last writes fail, and so keeps its space taken: it lets go when they end
// in memory.
void abandon(const FileId& file) {
  void* descriptor = nullptr;
  const int memory = ::memfd_create("abandoned checkpoint file", MFD_CLOEXEC);
  if (memory < 0) return;
  if (H5Fget_vfd_handle(file.get(), H5P_DEFAULT, &descriptor) >= 0) {
    ::dup3(memory, *static_cast<int*>(descriptor), O_CLOEXEC);
  }
  ::close(memory);
}

// Memory of a file that the library makes in memory, with a copy of what it held when it was closed.
struct MemoryImage {
  std::size_t size = 0;
  std::string closed;

  static void* resize(void* memory, std::size_t size, H5FD_file_image_op_t, void* image) {
    static_cast<MemoryImage*>(image)->size = size;
    return std::realloc(memory, size);
  }
  static herr_t free(void* memory, H5FD_file_image_op_t operation, void* image) {
    auto& self = *static_cast<MemoryImage*>(image);
    if (operation == H5FD_FILE_IMAGE_OP_FILE_CLOSE) self.closed.assign(static_cast<const char*>(memory), self.size);
    std::free(memory);
    return 0;
  }
  static H5FD_file_image_callbacks_t callbacks(MemoryImage& image) {
    return {
        .image_malloc = [](std::size_t size, H5FD_file_image_op_t operation,
                           void* to) { return resize(nullptr, size, operation, to); },
        .image_memcpy = [](void* to, const void* from, std::size_t size, H5FD_file_image_op_t,
                           void*) { return std::memcpy(to, from, size); },
        .image_realloc = resize,
        .image_free = free,
        .udata_copy = [](void* same) { return same; },
        .udata_free = [](void*) -> herr_t { return 0; },
        .udata = &image,
    };
  }
};

// A new file without datasets, as bytes: H5Fcreate keeps a file it could not finish creating, so we create it. Only a
// file that was closed has a superblock that does not say that someone writes to it.
std::string empty_file() {
  MemoryImage image;
  H5FD_file_image_callbacks_t callbacks = MemoryImage::callbacks(image);
  const Properties access(H5Pcreate(H5P_FILE_ACCESS));
  set_format(access.get());
  H5Pset_fapl_core(access.get(), 4096, false);  // in memory only
  H5Pset_file_image_callbacks(access.get(), &callbacks);
  FileId file(H5Fcreate("empty", H5F_ACC_TRUNC, H5P_DEFAULT, access.get()));
  ANANKE_CHECK(file.get() >= 0 && file.close() && !image.closed.empty(), "no HDF5 file in memory: {}",
               library_reason());
  return std::move(image.closed);
}

class ShardWriter {
 public:
  // `path` is an empty HDF5 file, which will have at least so many `bytes`.
  ShardWriter(const std::filesystem::path& path, std::uint64_t bytes)
      : path_(path),
        bytes_(bytes),
        access_(access_properties()),
        file_(H5Fopen(path.c_str(), H5F_ACC_RDWR, access_.get())) {
    require(file_.get() >= 0, path_, "open");
  }
  std::uint64_t write(const StateFragment& fragment);  // its checksum
  void close() {
    written(H5Fflush(file_.get(), H5F_SCOPE_GLOBAL) >= 0, "the last of");
    require(file_.close(), path_, "close");
  }

 private:
  std::uint64_t write_numbers(const Dataset& dataset, const StateFragment& fragment, const std::string& name);
  void write_attribute(const Dataset& dataset, const char* name, std::span<const std::uint64_t> values);
  void written(bool success, std::string_view what) const {
    if (success) return;
    const std::string why = library_reason(path_, bytes_);
    abandon(file_);
    fail(ErrorKind::checkpoint, "cannot write {} {}: {}", what, path_.string(), why);
  }

  std::filesystem::path path_;
  std::uint64_t bytes_;
  Properties access_;
  FileId file_;
  std::vector<float> piece_;  // of what does not lie in host memory
};

void ShardWriter::write_attribute(const Dataset& dataset, const char* name, std::span<const std::uint64_t> values) {
  const hsize_t count = values.size();
  const Space space(H5Screate_simple(1, &count, nullptr));
  const Attribute attribute(H5Acreate2(dataset.get(), name, H5T_STD_U64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT));
  written(attribute.get() >= 0, "an attribute to");
  written(H5Awrite(attribute.get(), H5T_NATIVE_UINT64, values.data()) >= 0, "an attribute to");
}

std::uint64_t ShardWriter::write_numbers(const Dataset& dataset, const StateFragment& fragment,
                                         const std::string& name) {
  Hasher64 checksum;
  const std::int64_t most = fragment.data ? fragment.count : std::min(fragment.count, StateFragment::at_once);
  if (!fragment.data) piece_.resize(static_cast<std::size_t>(most));
  for (std::int64_t begin = 0; begin < fragment.count; begin += most) {
    const std::int64_t count = std::min(most, fragment.count - begin);
    if (!fragment.data) fragment.move(begin, {piece_.data(), static_cast<std::size_t>(count)});
    const float* numbers = fragment.data ? fragment.data + begin : piece_.data();
    const auto start = static_cast<hsize_t>(begin), length = static_cast<hsize_t>(count);
    const Space memory(H5Screate_simple(1, &length, nullptr)), space(H5Dget_space(dataset.get()));
    H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &start, nullptr, &length, nullptr);
    written(H5Dwrite(dataset.get(), H5T_NATIVE_FLOAT, memory.get(), space.get(), H5P_DEFAULT, numbers) >= 0,
            name + " to");
    checksum.update(numbers, static_cast<std::size_t>(count) * sizeof(float));
  }
  return checksum.value();
}

std::uint64_t ShardWriter::write(const StateFragment& fragment) {
  const auto count = static_cast<hsize_t>(fragment.count);
  const Space space(H5Screate_simple(1, &count, nullptr));
  const Properties links(H5Pcreate(H5P_LINK_CREATE));
  H5Pset_create_intermediate_group(links.get(), 1);
  const Properties layout(H5Pcreate(H5P_DATASET_CREATE));
  H5Pset_layout(layout.get(), H5D_CONTIGUOUS);
  H5Pset_fill_time(layout.get(), H5D_FILL_TIME_NEVER);
  const std::string name = fragment.parameter + "/" + fragment.state;
  const Dataset dataset(
      H5Dcreate2(file_.get(), name.c_str(), H5T_IEEE_F32LE, space.get(), links.get(), layout.get(), H5P_DEFAULT));
  written(dataset.get() >= 0, name + " to");
  const std::uint64_t checksum = write_numbers(dataset, fragment, name);
  std::vector<std::uint64_t> shape;
  for (int i = 0; i < fragment.shape.rank(); ++i) shape.push_back(static_cast<std::uint64_t>(fragment.shape[i]));
  if (shape.empty()) shape.push_back(1);  // a scalar: HDF5 attributes cannot be empty
  write_attribute(dataset, "shape", shape);
  write_attribute(dataset, "begin", std::array{static_cast<std::uint64_t>(fragment.begin)});
  write_attribute(dataset, "checksum", std::array{checksum});
  return checksum;
}

}  // namespace

std::vector<std::uint64_t> write_shard(const std::filesystem::path& path, std::span<const StateFragment> fragments) {
  std::vector<std::uint64_t> checksums;
  std::uint64_t bytes = 0;
  for (const StateFragment& fragment : fragments) {
    bytes += static_cast<std::uint64_t>(fragment.count) * sizeof(float);
  }
  {
    const Library library;
    write_durably(path, empty_file());
    ShardWriter file(path, bytes);
    for (const StateFragment& fragment : fragments) checksums.push_back(file.write(fragment));
    file.close();
  }
  sync_path(path);
  return checksums;
}

struct ShardReader::Handle {
  std::filesystem::path path;
  hid_t file = -1;
};

ShardReader::ShardReader(const std::filesystem::path& path) : handle_(std::make_unique<Handle>()) {
  check_superblock(path);
  const Library library;
  const Properties access(access_properties());
  handle_->path = path;
  handle_->file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get());
  require(handle_->file >= 0, path, "open");
}

ShardReader::~ShardReader() {
  if (!handle_ || handle_->file < 0) return;
  const Library library;
  H5Fclose(handle_->file);
}
ShardReader::ShardReader(ShardReader&&) noexcept = default;

void ShardReader::read(const std::string& parameter, const std::string& state, std::int64_t offset, std::int64_t count,
                       float* into) {
  const Library library;
  const std::string name = parameter + "/" + state;
  const Dataset dataset(H5Dopen2(handle_->file, name.c_str(), H5P_DEFAULT));
  require(dataset.get() >= 0, handle_->path, "find " + name + " in");
  const Space space(H5Dget_space(dataset.get()));
  const hssize_t stored = H5Sget_simple_extent_npoints(space.get());
  if (offset < 0 || count < 0 || offset + count > stored) {
    fail(ErrorKind::checkpoint, "{} in {} has {} elements where the index promises at least {}", name,
         handle_->path.string(), stored, offset + count);
  }
  const auto start = static_cast<hsize_t>(offset);
  const auto length = static_cast<hsize_t>(count);
  const Space memory(H5Screate_simple(1, &length, nullptr));
  H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &start, nullptr, &length, nullptr);
  const bool read = H5Dread(dataset.get(), H5T_NATIVE_FLOAT, memory.get(), space.get(), H5P_DEFAULT, into) >= 0;
  require(read, handle_->path, "read " + name + " from");
}

namespace {

std::vector<std::uint64_t> read_attribute(const Dataset& dataset, const std::filesystem::path& path, const char* name) {
  const Attribute attribute(H5Aopen(dataset.get(), name, H5P_DEFAULT));
  require(attribute.get() >= 0, path, std::string("find the attribute ") + name + " in");
  const Space space(H5Aget_space(attribute.get()));
  const hssize_t count = H5Sget_simple_extent_npoints(space.get());
  require(count > 0 && count <= 64, path, std::string("use the attribute ") + name + " of");
  std::vector<std::uint64_t> values(static_cast<std::size_t>(count));
  require(H5Aread(attribute.get(), H5T_NATIVE_UINT64, values.data()) >= 0, path,
          std::string("read the attribute ") + name + " of");
  return values;
}

}  // namespace

ShardReader::Description ShardReader::describe(const std::string& parameter, const std::string& state) {
  const Library library;
  const std::string name = parameter + "/" + state;
  const Dataset dataset(H5Dopen2(handle_->file, name.c_str(), H5P_DEFAULT));
  require(dataset.get() >= 0, handle_->path, "find " + name + " in");
  const Space space(H5Dget_space(dataset.get()));
  Description description;
  description.elements = H5Sget_simple_extent_npoints(space.get());
  description.begin = static_cast<std::int64_t>(read_attribute(dataset, handle_->path, "begin")[0]);
  description.checksum = read_attribute(dataset, handle_->path, "checksum")[0];
  for (const std::uint64_t size : read_attribute(dataset, handle_->path, "shape")) {
    description.shape.push_back(static_cast<std::int64_t>(size));
  }
  return description;
}

}  // namespace ananke
