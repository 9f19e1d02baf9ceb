#include "runtime/checkpoint/shard_file.h"

#include <fcntl.h>
#include <hdf5.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
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
std::string library_reason() {
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
  if (error != 0) return reason(error);
  return text.empty() ? "HDF5 gives no reason" : "HDF5: " + text;
}

// Called right after the library: its next call, even a successful one, forgets the reason.
void require(bool success, const std::filesystem::path& file, std::string_view action) {
  if (!success) fail(ErrorKind::checkpoint, "cannot {} {}: {}", action, file.string(), library_reason());
}

// No file locks: many cluster file systems refuse or hang on them, and nobody else opens a file of this name.
hid_t access_properties() {
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_file_locking(access, false, true);
  H5Pset_alignment(access, 65536, 4096);  // large datasets begin on a page
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

// A new file without datasets, as bytes: H5Fcreate keeps a file it could not finish creating, so we create it.
std::string empty_file() {
  const Properties access(H5Pcreate(H5P_FILE_ACCESS));
  H5Pset_fapl_core(access.get(), 4096, false);  // in memory only
  const FileId file(H5Fcreate("empty", H5F_ACC_TRUNC, H5P_DEFAULT, access.get()));
  H5Fflush(file.get(), H5F_SCOPE_GLOBAL);
  const ssize_t bytes = H5Fget_file_image(file.get(), nullptr, 0);
  ANANKE_CHECK(bytes > 0, "an empty HDF5 file of {} bytes", bytes);
  std::string image(static_cast<std::size_t>(bytes), '\0');
  H5Fget_file_image(file.get(), image.data(), image.size());
  return image;
}

class ShardWriter {
 public:
  // `path` is an empty HDF5 file.
  explicit ShardWriter(const std::filesystem::path& path)
      : path_(path), access_(access_properties()), file_(H5Fopen(path.c_str(), H5F_ACC_RDWR, access_.get())) {
    require(file_.get() >= 0, path_, "open");
  }
  void write(const StateFragment& fragment, std::uint64_t checksum);
  void close() {
    written(H5Fflush(file_.get(), H5F_SCOPE_GLOBAL) >= 0, "the last of");
    require(file_.close(), path_, "close");
  }

 private:
  void write_attribute(const Dataset& dataset, const char* name, std::span<const std::uint64_t> values);
  void written(bool success, std::string_view what) const {
    if (success) return;
    const std::string why = library_reason();
    abandon(file_);
    fail(ErrorKind::checkpoint, "cannot write {} {}: {}", what, path_.string(), why);
  }

  std::filesystem::path path_;
  Properties access_;
  FileId file_;
};

void ShardWriter::write_attribute(const Dataset& dataset, const char* name, std::span<const std::uint64_t> values) {
  const hsize_t count = values.size();
  const Space space(H5Screate_simple(1, &count, nullptr));
  const Attribute attribute(H5Acreate2(dataset.get(), name, H5T_STD_U64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT));
  written(attribute.get() >= 0, "an attribute to");
  written(H5Awrite(attribute.get(), H5T_NATIVE_UINT64, values.data()) >= 0, "an attribute to");
}

void ShardWriter::write(const StateFragment& fragment, std::uint64_t checksum) {
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
  written(H5Dwrite(dataset.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, fragment.data) >= 0, name + " to");
  std::vector<std::uint64_t> shape;
  for (int i = 0; i < fragment.shape.rank(); ++i) shape.push_back(static_cast<std::uint64_t>(fragment.shape[i]));
  if (shape.empty()) shape.push_back(1);  // a scalar: HDF5 attributes cannot be empty
  write_attribute(dataset, "shape", shape);
  write_attribute(dataset, "begin", std::array{static_cast<std::uint64_t>(fragment.begin)});
  write_attribute(dataset, "checksum", std::array{checksum});
}

std::uint64_t checksum_of(const float* data, std::int64_t count) {
  return hash64({reinterpret_cast<const char*>(data), static_cast<std::size_t>(count) * sizeof(float)});
}

}  // namespace

std::vector<std::uint64_t> write_shard(const std::filesystem::path& path, std::span<const StateFragment> fragments) {
  std::vector<std::uint64_t> checksums;
  for (const StateFragment& fragment : fragments) checksums.push_back(checksum_of(fragment.data, fragment.count));
  {
    const Library library;
    write_durably(path, empty_file());
    ShardWriter file(path);
    for (std::size_t i = 0; i < fragments.size(); ++i) file.write(fragments[i], checksums[i]);
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
  const Library library;
  const Properties access(access_properties());
  handle_->path = path;
  handle_->file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get());
  require(handle_->file >= 0, path, "open");
}

ShardReader::~ShardReader() {
  if (!handle_) return;
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

}  // namespace ananke
