#include "runtime/data/token_store.h"

#include <hdf5.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/data/hdf5_handle.h"
#include "runtime/data/offset_index.h"

namespace ananke {
namespace {

static_assert(std::endian::native == std::endian::little, "the superblock is read as it lies in the file");

constexpr const char* how_to_repair = "import the text again with `ananke data import`";

// libhdf5 1.10 overflows its own heap on damaged files of older formats. From superblock version 3 on, everything that
// it follows has a checksum, which it compares first. Nor need it survive a file that was cut short, so the length that
// the superblock claims is compared. Layout: HDF5 File Format Specification 3.0, II.A (versions 2 and 3).
void check_superblock(const std::string& path) {
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) fail(ErrorKind::data, "cannot open the token store {}: {}", path, std::strerror(errno));
  unsigned char head[64] = {};
  const std::size_t got = std::fread(head, 1, sizeof head, file.get());
  if (std::ferror(file.get())) fail(ErrorKind::data, "cannot read the token store {}: {}", path, std::strerror(errno));
  std::error_code problem;
  const std::uint64_t bytes = std::filesystem::file_size(path, problem);
  if (problem) fail(ErrorKind::data, "{} is not a token store: {}", path, problem.message());
  static constexpr unsigned char signature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
  if (got < sizeof signature || std::memcmp(head, signature, sizeof signature) != 0) {
    fail(ErrorKind::data, "{} ({} bytes) is not an HDF5 file, so not a token store; {}", path, bytes, how_to_repair);
  }
  std::uint64_t end = 0;
  if (got < sizeof head || head[8] > 3 || (head[8] == 3 && head[9] != sizeof end)) {
    fail(ErrorKind::data, "{} ({} bytes): the HDF5 superblock is damaged; {}", path, bytes, how_to_repair);
  }
  if (head[8] < 3) {
    fail(ErrorKind::data,
         "{} has an HDF5 superblock of version {}; only version 3 is read, whose structures have checksums: {}, or "
         "write "
         "it with libver='latest' (h5py)",
         path, head[8], how_to_repair);
  }
  std::memcpy(&end, head + 28, sizeof end);
  if (end > bytes) {
    fail(ErrorKind::data, "{} was cut short: it has {} bytes of {}; {}", path, bytes, end, how_to_repair);
  }
}

}  // namespace

struct TokenStore::State {
  std::string path;
  TokenStoreInfo info;
  std::uint64_t targets = 0;
  Hdf5Handle file;
  Hdf5Handle tokens;
  Hdf5Handle document_offsets;
  std::unique_ptr<OffsetIndex> index;

  ~State() {  // also where the constructor of TokenStore throws
    const Hdf5Session session;
    tokens.reset();
    document_offsets.reset();
    file.reset();
  }
  [[noreturn]] void refuse(const std::string& what) const {
    fail(ErrorKind::data, "{} is not a usable token store: {}; {}", path, what, how_to_repair);
  }
  Hdf5Handle attribute(const char* name) const {
    Hdf5Handle result(H5Aopen(file.get(), name, H5P_DEFAULT), H5Aclose);
    if (!result) refuse(fmt::format("it has no attribute {}", name));
    const Hdf5Handle space(H5Aget_space(result.get()), H5Sclose);
    if (H5Sget_simple_extent_npoints(space.get()) != 1) refuse(fmt::format("attribute {} is not one value", name));
    return result;
  }
  std::uint64_t number(const char* name, hid_t memory = H5T_NATIVE_UINT64) const {
    const Hdf5Handle from = attribute(name);
    const Hdf5Handle type(H5Aget_type(from.get()), H5Tclose);
    std::uint64_t value = 0;
    if (H5Tget_class(type.get()) != H5T_INTEGER || H5Aread(from.get(), memory, &value) < 0) {
      refuse(fmt::format("attribute {} is not a whole number", name));
    }
    return value;
  }
  std::string text(const char* name) const;
  Hdf5Handle dataset(const char* name, std::uint64_t& length) const;
  void read_info();
  std::uint64_t open_datasets();
  void read_offsets(std::uint64_t first, std::span<std::uint64_t> out) const;
  void check_offsets();
};

// Text of variable length stands on HDF5's global heap, which has no checksum in any version.
std::string TokenStore::State::text(const char* name) const {
  const Hdf5Handle from = attribute(name);
  const Hdf5Handle type(H5Aget_type(from.get()), H5Tclose);
  if (H5Tget_class(type.get()) != H5T_STRING) refuse(fmt::format("attribute {} is not text", name));
  if (H5Tis_variable_str(type.get()) != 0) {
    refuse(
        fmt::format("attribute {} is text of variable length; h5py writes numpy.bytes_(...) with a fixed one", name));
  }
  std::string result(H5Tget_size(type.get()), '\0');
  if (H5Aread(from.get(), type.get(), result.data()) < 0) {
    refuse(fmt::format("attribute {} cannot be read: {}", name, hdf5_reason()));
  }
  result.resize(std::min(result.size(), result.find('\0')));
  return result;
}

Hdf5Handle TokenStore::State::dataset(const char* name, std::uint64_t& length) const {
  // A link to another file would lead to one that nobody has looked at.
  H5L_info_t link{};
  if (H5Lget_info(file.get(), name, &link, H5P_DEFAULT) >= 0 && link.type != H5L_TYPE_HARD) {
    refuse(fmt::format("{} is a link", name));
  }
  const Hdf5Handle access(H5Pcreate(H5P_DATASET_ACCESS), H5Pclose);
  H5Pset_chunk_cache(access.get(), 521, std::size_t{8} << 20, 0.75);
  Hdf5Handle result(H5Dopen2(file.get(), name, access.get()), H5Dclose);
  if (!result) refuse(fmt::format("it has no dataset {} ({})", name, hdf5_reason()));
  const Hdf5Handle type(H5Dget_type(result.get()), H5Tclose);
  const Hdf5Handle space(H5Dget_space(result.get()), H5Sclose);
  if (H5Tget_class(type.get()) != H5T_INTEGER || H5Tget_sign(type.get()) != H5T_SGN_NONE ||
      H5Sget_simple_extent_ndims(space.get()) != 1) {
    refuse(fmt::format("dataset {} is not a one-dimensional array of unsigned integers", name));
  }
  const Hdf5Handle creation(H5Dget_create_plist(result.get()), H5Pclose);
  if (H5Pget_layout(creation.get()) == H5D_VIRTUAL || H5Pget_external_count(creation.get()) != 0) {
    refuse(fmt::format("dataset {} has its data in other files", name));
  }
  hsize_t size = 0;
  H5Sget_simple_extent_dims(space.get(), &size, nullptr);
  length = size;
  return result;
}

void TokenStore::State::read_info() {
  const std::string format = text("format");
  if (format != "ananke-token-store") refuse(fmt::format("its format is \"{}\"", format));
  const std::uint64_t version = number("version");
  if (version != 1) refuse(fmt::format("its format version is {}, this program reads 1", version));
  info.tokenizer = text("tokenizer");
  info.tokenizer_hash = text("tokenizer_hash");
  info.eos_id = static_cast<std::int64_t>(number("eos_id", H5T_NATIVE_INT64));
  info.vocabulary_size = number("vocabulary_size");
  info.source = text("source");
  info.source_hash = text("source_hash");
  info.source_bytes = number("source_bytes");
  if (info.vocabulary_size == 0 || info.vocabulary_size > std::numeric_limits<std::int32_t>::max()) {
    refuse(fmt::format("its vocabulary_size is {}", info.vocabulary_size));
  }
  if (info.eos_id < -1 || info.eos_id >= static_cast<std::int64_t>(info.vocabulary_size)) {
    refuse(fmt::format("its eos_id is {}, with a vocabulary of {}", info.eos_id, info.vocabulary_size));
  }
}

// How many offsets there are.
std::uint64_t TokenStore::State::open_datasets() {
  tokens = dataset("tokens", info.tokens);
  std::uint64_t count = 0;
  document_offsets = dataset("document_offsets", count);
  if (count == 0) refuse("document_offsets is empty (documents + 1 are needed)");
  // An offset takes 8 bytes on disk: a damaged extent must not become a huge allocation.
  const std::uint64_t bytes = std::filesystem::file_size(path);
  if (count > bytes / 8 + 8192 || info.tokens > bytes + 65536) {
    refuse(fmt::format("{} documents and {} tokens cannot fit its {} bytes", count - 1, info.tokens, bytes));
  }
  info.documents = count - 1;
  return count;
}

void TokenStore::State::read_offsets(std::uint64_t first, std::span<std::uint64_t> out) const {
  {
    const Hdf5Session session;
    const hsize_t begin = first;
    const hsize_t count = out.size();
    const Hdf5Handle in_file(H5Dget_space(document_offsets.get()), H5Sclose);
    const Hdf5Handle in_memory(H5Screate_simple(1, &count, nullptr), H5Sclose);
    H5Sselect_hyperslab(in_file.get(), H5S_SELECT_SET, &begin, nullptr, &count, nullptr);
    if (H5Dread(document_offsets.get(), H5T_NATIVE_UINT64, in_memory.get(), in_file.get(), H5P_DEFAULT, out.data()) <
        0) {
      refuse(fmt::format("document_offsets cannot be read: {}", hdf5_reason()));
    }
  }
  const auto fall = std::is_sorted_until(out.begin(), out.end());
  if (fall != out.end()) {
    const std::uint64_t at = first + static_cast<std::uint64_t>(fall - out.begin());
    refuse(fmt::format("document_offsets fall from {} to {} at document {}", fall[-1], *fall, at));
  }
  if (out.back() > info.tokens) {
    refuse(fmt::format("document_offsets reach {}, but there are {} tokens", out.back(), info.tokens));
  }
}

// Every offset once, in the order of the file; chunks overlap by one, so that falls between them show as well.
void TokenStore::State::check_offsets() {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  if (info.documents == 0) read_offsets(0, {&last, 1});
  for (std::uint64_t document = 0; document < info.documents; ++document) {
    const OffsetIndex::Range range = index->range(document);
    if (document == 0) first = range.begin;
    last = range.end;
    if (range.end > range.begin) targets += range.end - range.begin - 1;
  }
  if (first != 0 || last != info.tokens) {
    refuse(fmt::format("document_offsets run from {} to {}, but there are {} tokens", first, last, info.tokens));
  }
}

TokenStore::TokenStore(const std::filesystem::path& path, std::size_t index_memory)
    : state_(std::make_unique<State>()) {
  state_->path = path.string();
  check_superblock(state_->path);
  std::uint64_t offsets = 0;
  {
    const Hdf5Session session;
    const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    H5Pset_file_locking(access.get(), false, true);  // many readers, no writer; parallel file systems may have no locks
    state_->file = Hdf5Handle(H5Fopen(state_->path.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose);
    if (!state_->file) state_->refuse(hdf5_reason());
    state_->read_info();
    offsets = state_->open_datasets();
  }
  State* state = state_.get();  // which owns the index: it lives longer
  state_->index = std::make_unique<OffsetIndex>(
      offsets, index_memory,
      [state](std::uint64_t first, std::span<std::uint64_t> out) { state->read_offsets(first, out); });
  state_->check_offsets();
}

TokenStore::~TokenStore() = default;
TokenStore::TokenStore(TokenStore&&) noexcept = default;

const std::string& TokenStore::path() const noexcept { return state_->path; }
const TokenStoreInfo& TokenStore::info() const noexcept { return state_->info; }

std::string TokenStore::tokenizer_model() const {
  const State& state = *state_;
  std::string model;
  {
    const Hdf5Session session;
    if (H5Lexists(state.file.get(), "tokenizer_model", H5P_DEFAULT) <= 0) return {};
    std::uint64_t size = 0;
    const Hdf5Handle set = state.dataset("tokenizer_model", size);
    if (size > std::filesystem::file_size(state.path)) state.refuse(fmt::format("its tokenizer has {} bytes", size));
    model.resize(size);
    if (H5Dread(set.get(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, model.data()) < 0) {
      state.refuse(fmt::format("its tokenizer cannot be read: {}", hdf5_reason()));
    }
  }
  if (const std::string hash = hash_hex(model); hash != state.info.tokenizer_hash) {
    state.refuse(fmt::format("the tokenizer in it has the hash {} where {} is said", hash, state.info.tokenizer_hash));
  }
  return model;
}

std::uint64_t TokenStore::targets() const noexcept { return state_->targets; }

std::uint64_t TokenStore::length(std::uint64_t document) const {
  const OffsetIndex::Range range = state_->index->range(document);
  return range.end - range.begin;
}

void TokenStore::read(std::uint64_t document, std::uint64_t begin, std::span<std::int32_t> out) const {
  const State& state = *state_;
  const OffsetIndex::Range range = state.index->range(document);
  const std::uint64_t length = range.end - range.begin;
  ANANKE_CHECK(begin <= length && out.size() <= length - begin, "{}: tokens {} + {} of document {} of {}", state.path,
               begin, out.size(), document, length);
  if (out.empty()) return;
  {
    const Hdf5Session session;
    const hsize_t first = range.begin + begin;
    const hsize_t count = out.size();
    const Hdf5Handle in_file(H5Dget_space(state.tokens.get()), H5Sclose);
    const Hdf5Handle in_memory(H5Screate_simple(1, &count, nullptr), H5Sclose);
    H5Sselect_hyperslab(in_file.get(), H5S_SELECT_SET, &first, nullptr, &count, nullptr);
    if (H5Dread(state.tokens.get(), H5T_NATIVE_INT32, in_memory.get(), in_file.get(), H5P_DEFAULT, out.data()) < 0) {
      state.refuse(fmt::format("tokens {} to {} cannot be read: {}", first, first + count, hdf5_reason()));
    }
  }
  const auto most = static_cast<std::int32_t>(state.info.vocabulary_size);
  const auto strange =
      std::find_if(out.begin(), out.end(), [&](std::int32_t token) { return token < 0 || token >= most; });
  if (strange != out.end()) {
    state.refuse(fmt::format("token {} of document {} is {}, but the vocabulary has {}",
                             begin + static_cast<std::uint64_t>(strange - out.begin()), document, *strange, most));
  }
}

}  // namespace ananke
