#include <hdf5.h>

#include <algorithm>
#include <limits>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/replace_file.h"
#include "runtime/data/hdf5_handle.h"
#include "runtime/data/token_store.h"

namespace ananke {
namespace {

constexpr std::size_t tokens_per_chunk = std::size_t{64} << 10;
constexpr std::size_t offsets_per_chunk = std::size_t{8} << 10;

hid_t stored_type(std::uint64_t vocabulary_size) {
  if (vocabulary_size <= 1U << 8) return H5T_STD_U8LE;
  return vocabulary_size <= 1U << 16 ? H5T_STD_U16LE : H5T_STD_U32LE;
}

// One growing dataset, written a chunk at a time.
template <class T>
class Column {
 public:
  Column(std::string file, std::int64_t file_id, const char* name, hid_t stored, hid_t memory, std::size_t chunk)
      : file_(std::move(file)), name_(name), memory_(memory), chunk_(chunk) {
    const hsize_t none = 0;
    const hsize_t unlimited = H5S_UNLIMITED;
    const hsize_t chunk_size = chunk;
    const Hdf5Handle space(H5Screate_simple(1, &none, &unlimited), H5Sclose);
    const Hdf5Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_chunk(creation.get(), 1, &chunk_size);
    H5Pset_fletcher32(creation.get());
    H5Pset_obj_track_times(creation.get(), false);  // the same input makes the same bytes
    dataset_ =
        Hdf5Handle(H5Dcreate2(file_id, name, stored, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT), H5Dclose);
    if (!dataset_) refuse("create");
    buffer_.reserve(chunk);
  }

  void append(std::span<const T> values) {
    while (!values.empty()) {
      const std::size_t now = std::min(values.size(), chunk_ - buffer_.size());
      buffer_.insert(buffer_.end(), values.begin(), values.begin() + static_cast<std::ptrdiff_t>(now));
      values = values.subspan(now);
      if (buffer_.size() == chunk_) flush();
    }
  }

  void flush() {
    if (buffer_.empty()) return;
    const hsize_t begin = written_;
    const hsize_t count = buffer_.size();
    const hsize_t size = begin + count;
    if (H5Dset_extent(dataset_.get(), &size) < 0) refuse("extend");
    const Hdf5Handle in_file(H5Dget_space(dataset_.get()), H5Sclose);
    const Hdf5Handle in_memory(H5Screate_simple(1, &count, nullptr), H5Sclose);
    H5Sselect_hyperslab(in_file.get(), H5S_SELECT_SET, &begin, nullptr, &count, nullptr);
    if (H5Dwrite(dataset_.get(), memory_, in_memory.get(), in_file.get(), H5P_DEFAULT, buffer_.data()) < 0)
      refuse("write");
    written_ = size;
    buffer_.clear();
  }

  void close() {
    flush();
    if (!dataset_.reset()) refuse("close");
  }

 private:
  [[noreturn]] void refuse(const char* action) const {
    fail(ErrorKind::resource, "cannot {} dataset {} of {}: {}", action, name_, file_, hdf5_reason());
  }

  std::string file_;
  const char* name_;
  hid_t memory_;
  std::size_t chunk_;
  Hdf5Handle dataset_;
  std::vector<T> buffer_;
  std::uint64_t written_ = 0;
};

void write_attribute(std::int64_t file, const char* name, hid_t stored, hid_t memory, const void* value) {
  const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Hdf5Handle attribute(H5Acreate2(file, name, stored, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  if (!attribute || H5Awrite(attribute.get(), memory, value) < 0) {
    fail(ErrorKind::resource, "cannot write attribute {} of a token store: {}", name, hdf5_reason());
  }
}

void write_attribute(std::int64_t file, const char* name, std::uint64_t value) {
  write_attribute(file, name, H5T_STD_U64LE, H5T_NATIVE_UINT64, &value);
}

void write_attribute(std::int64_t file, const char* name, const std::string& value) {
  const Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), value.size() + 1);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  write_attribute(file, name, type.get(), type.get(), value.c_str());
}

}  // namespace

struct TokenStoreWriter::State {
  explicit State(const std::filesystem::path& path) : target(path) {}
  ~State() {
    const Hdf5Session session;
    tokens.reset();
    offsets.reset();
    file.reset();
  }

  ReplacedFile target;
  TokenStoreInfo info;
  Hdf5Handle file;
  std::unique_ptr<Column<std::int32_t>> tokens;
  std::unique_ptr<Column<std::uint64_t>> offsets;
};

TokenStoreWriter::TokenStoreWriter(const std::filesystem::path& path, std::string tokenizer, std::string tokenizer_hash,
                                   std::int64_t eos_id, std::uint64_t vocabulary_size)
    : state_(std::make_unique<State>(path)) {
  constexpr std::uint64_t most = std::numeric_limits<std::int32_t>::max();
  if (vocabulary_size == 0 || vocabulary_size > most) {
    fail(ErrorKind::data, "cannot make {}: a vocabulary of {} tokens is not between 1 and {}", path.string(),
         vocabulary_size, most);
  }
  state_->info.tokenizer = std::move(tokenizer);
  state_->info.tokenizer_hash = std::move(tokenizer_hash);
  state_->info.eos_id = eos_id;
  state_->info.vocabulary_size = vocabulary_size;
  const std::string partial = state_->target.partial().string();
  const Hdf5Session session;
  const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110);
  const Hdf5Handle creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  H5Pset_obj_track_times(creation.get(), false);
  state_->file = Hdf5Handle(H5Fcreate(partial.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()), H5Fclose);
  if (!state_->file) fail(ErrorKind::resource, "cannot create {}: {}", partial, hdf5_reason());
  state_->tokens = std::make_unique<Column<std::int32_t>>(
      partial, state_->file.get(), "tokens", stored_type(vocabulary_size), H5T_NATIVE_INT32, tokens_per_chunk);
  state_->offsets = std::make_unique<Column<std::uint64_t>>(partial, state_->file.get(), "document_offsets",
                                                            H5T_STD_U64LE, H5T_NATIVE_UINT64, offsets_per_chunk);
  const std::uint64_t first = 0;
  state_->offsets->append({&first, 1});
}

TokenStoreWriter::~TokenStoreWriter() = default;

void TokenStoreWriter::append(std::span<const std::int32_t> tokens) {
  for (const std::int32_t token : tokens) {
    if (token < 0 || static_cast<std::uint64_t>(token) >= state_->info.vocabulary_size) {
      fail(ErrorKind::data, "cannot write token {} to {}: the vocabulary of tokenizer {} has {}", token,
           state_->target.partial().string(), state_->info.tokenizer, state_->info.vocabulary_size);
    }
  }
  const Hdf5Session session;
  state_->tokens->append(tokens);
  state_->info.tokens += tokens.size();
}

void TokenStoreWriter::end_document() {
  const Hdf5Session session;
  state_->offsets->append({&state_->info.tokens, 1});
  ++state_->info.documents;
}

void TokenStoreWriter::keep_tokenizer(std::string_view model) {
  ANANKE_CHECK(hash_hex(model) == state_->info.tokenizer_hash, "a tokenizer whose hash is not {}",
               state_->info.tokenizer_hash);
  const Hdf5Session session;
  const hsize_t size = model.size();
  const Hdf5Handle space(H5Screate_simple(1, &size, nullptr), H5Sclose);
  const Hdf5Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_obj_track_times(creation.get(), false);
  const Hdf5Handle set(H5Dcreate2(state_->file.get(), "tokenizer_model", H5T_STD_U8LE, space.get(), H5P_DEFAULT,
                                  creation.get(), H5P_DEFAULT),
                       H5Dclose);
  if (!set || H5Dwrite(set.get(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, model.data()) < 0) {
    fail(ErrorKind::resource, "cannot write the tokenizer to {}: {}", state_->target.partial().string(), hdf5_reason());
  }
}

void TokenStoreWriter::finish(const std::string& source, const std::string& source_hash, std::uint64_t source_bytes) {
  {
    const Hdf5Session session;
    const std::int64_t file = state_->file.get();
    state_->tokens->close();
    state_->offsets->close();
    write_attribute(file, "format", std::string("ananke-token-store"));
    write_attribute(file, "version", std::uint64_t{1});
    write_attribute(file, "tokenizer", state_->info.tokenizer);
    write_attribute(file, "tokenizer_hash", state_->info.tokenizer_hash);
    write_attribute(file, "eos_id", H5T_STD_I64LE, H5T_NATIVE_INT64, &state_->info.eos_id);
    write_attribute(file, "vocabulary_size", state_->info.vocabulary_size);
    write_attribute(file, "source", source);
    write_attribute(file, "source_hash", source_hash);
    write_attribute(file, "source_bytes", source_bytes);
    if (!state_->file.reset()) {
      fail(ErrorKind::resource, "cannot write {}: {}", state_->target.partial().string(), hdf5_reason());
    }
  }
  state_->target.commit();
}

}  // namespace ananke
