#include "runtime/data/megatron_dataset.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/control/socket.h"

namespace ananke {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are read as they lie on disk");

constexpr char magic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
constexpr std::uint64_t head_bytes = 34;

class File {
 public:
  explicit File(std::filesystem::path path) : path_(path.string()), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    struct stat status {};
    if (!file_ || ::fstat(file_.get(), &status) != 0) {
      fail(ErrorKind::data, "cannot open {}: {}", path_, std::strerror(errno));
    }
    if (!S_ISREG(status.st_mode)) fail(ErrorKind::data, "cannot read {}: it is not a file", path_);
    size_ = static_cast<std::uint64_t>(status.st_size);
  }
  const std::string& path() const noexcept { return path_; }
  std::uint64_t size() const noexcept { return size_; }

  void read(std::uint64_t at, void* out, std::size_t bytes) const {
    auto* to = static_cast<char*>(out);
    while (bytes > 0) {
      const ssize_t got = ::pread(file_.get(), to, bytes, static_cast<off_t>(at));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        fail(ErrorKind::data, "cannot read {} at byte {} of {}: {}", path_, at, size_,
             got < 0 ? std::strerror(errno) : "the file ends there");
      }
      to += got;
      at += static_cast<std::uint64_t>(got);
      bytes -= static_cast<std::size_t>(got);
    }
  }

 private:
  std::string path_;
  Descriptor file_;
  std::uint64_t size_ = 0;
};

// An array in a file, read front to back.
template <class T>
class Array {
 public:
  void place(std::uint64_t at, std::uint64_t count) noexcept {
    at_ = at;
    left_ = count;
  }
  T next(const File& file) {
    if (used_ == buffer_.size()) {
      buffer_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(left_, 8192)));
      file.read(at_, buffer_.data(), buffer_.size() * sizeof(T));
      at_ += buffer_.size() * sizeof(T);
      left_ -= buffer_.size();
      used_ = 0;
    }
    return buffer_[used_++];
  }

 private:
  std::uint64_t at_ = 0;
  std::uint64_t left_ = 0;  // not yet in the buffer
  std::vector<T> buffer_;
  std::size_t used_ = 0;
};

std::filesystem::path with_extension(std::filesystem::path path, const char* extension) {
  if (path.extension() == ".idx" || path.extension() == ".bin") return path.replace_extension(extension);
  return path.string() + extension;
}

std::size_t width_of(std::uint8_t type) {
  switch (type) {
    case 1: return 1;  // unsigned
    case 2: return 1;
    case 3: return 2;
    case 8: return 2;  // unsigned
    case 4: return 4;
    case 5: return 8;
    default: return 0;  // 6 and 7 are floating point
  }
}

template <class T>
bool widen(const char* from, std::span<std::int32_t> out, std::uint64_t vocabulary_size, std::int64_t& strange) {
  for (std::int32_t& token : out) {
    T value;
    std::memcpy(&value, from, sizeof value);
    from += sizeof value;
    if (std::cmp_less(value, 0) || std::cmp_greater_equal(value, vocabulary_size)) {
      strange = static_cast<std::int64_t>(value);
      return false;
    }
    token = static_cast<std::int32_t>(value);
  }
  return true;
}

}  // namespace

struct MegatronDataset::State {
  State(const std::filesystem::path& path) : index(with_extension(path, ".idx")), data(with_extension(path, ".bin")) {}

  File index;
  File data;
  std::uint8_t type = 0;
  std::size_t width = 0;
  std::uint64_t sequences = 0;
  std::uint64_t documents = 0;
  Array<std::int32_t> lengths;
  Array<std::int64_t> places;
  Array<std::int64_t> firsts;
  std::uint64_t bytes_read = 0;
  std::uint64_t document = 0;      // the current one
  std::uint64_t sequence = 0;      // the next one to open
  std::uint64_t document_end = 0;  // sequence that the current document ends before
  bool inside = false;             // a document is open
  std::uint64_t at = 0;            // in `data`, of the open sequence
  std::uint64_t left = 0;          // tokens of it
  std::vector<char> raw;

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> what, Args&&... args) const {
    fail(ErrorKind::data, "{} is not a usable Megatron index: {}", index.path(),
         fmt::format(what, std::forward<Args>(args)...));
  }
  void read_head();
  void open_document();
  void open_sequence();
};

void MegatronDataset::State::read_head() {
  if (index.size() < head_bytes) refuse("it has {} bytes, and its head alone has {}", index.size(), head_bytes);
  char head[head_bytes];
  index.read(0, head, sizeof head);
  if (std::memcmp(head, magic, sizeof magic) != 0) refuse("it does not begin with MMIDIDX");
  std::uint64_t version = 0;
  std::uint64_t offsets = 0;
  std::memcpy(&version, head + 9, 8);
  std::memcpy(&type, head + 17, 1);
  std::memcpy(&sequences, head + 18, 8);
  std::memcpy(&offsets, head + 26, 8);
  if (version != 1) refuse("its version is {}, this program reads 1", version);
  width = width_of(type);
  if (width == 0) refuse("its tokens have type {}; 1 to 5 and 8 are whole numbers", type);
  // Divided, not multiplied: garbage must not overflow.
  const std::uint64_t rest = index.size() - head_bytes;
  const bool fits = sequences <= rest / 12 && offsets <= (rest - 12 * sequences) / 8;
  const std::uint64_t beyond = fits ? rest - 12 * sequences - 8 * offsets : 0;
  if (!fits || offsets == 0) {
    refuse("{} sequences and {} offsets of documents do not fit its {} bytes", sequences, offsets, index.size());
  }
  if (beyond == sequences && beyond > 0) refuse("its sequences have modes (multimodal data), which are not supported");
  if (beyond != 0) {
    refuse("{} sequences and {} offsets of documents leave {} of its {} bytes over", sequences, offsets, beyond,
           index.size());
  }
  lengths.place(head_bytes, sequences);
  places.place(head_bytes + 4 * sequences, sequences);
  firsts.place(head_bytes + 12 * sequences, offsets);
  documents = offsets - 1;
  const std::int64_t first = firsts.next(index);
  if (first != 0) refuse("its first document begins at sequence {}, not 0", first);
  if (documents == 0 && sequences > 0) refuse("it has {} sequences, but no document", sequences);
}

void MegatronDataset::State::open_document() {
  const std::int64_t end = firsts.next(index);
  if (end < 0 || static_cast<std::uint64_t>(end) < sequence || static_cast<std::uint64_t>(end) > sequences) {
    refuse("document {} runs from sequence {} to {}, of {}", document, sequence, end, sequences);
  }
  if (document + 1 == documents && static_cast<std::uint64_t>(end) != sequences) {
    refuse("its documents end at sequence {}, but there are {}", end, sequences);
  }
  document_end = static_cast<std::uint64_t>(end);
  inside = true;
}

void MegatronDataset::State::open_sequence() {
  const std::int32_t length = lengths.next(index);
  const std::int64_t place = places.next(index);
  if (length < 0 || place < 0) refuse("sequence {} has {} tokens at byte {}", sequence, length, place);
  at = static_cast<std::uint64_t>(place);
  left = static_cast<std::uint64_t>(length);
  if (at > data.size() || left * width > data.size() - at) {
    refuse("sequence {} has {} tokens of {} bytes at byte {}, but {} has {} bytes", sequence, length, width, place,
           data.path(), data.size());
  }
  ++sequence;
}

MegatronDataset::MegatronDataset(const std::filesystem::path& path) : state_(std::make_unique<State>(path)) {
  state_->read_head();
}

MegatronDataset::~MegatronDataset() = default;
const std::string& MegatronDataset::index_path() const noexcept { return state_->index.path(); }
const std::string& MegatronDataset::data_path() const noexcept { return state_->data.path(); }
std::uint64_t MegatronDataset::documents() const noexcept { return state_->documents; }
std::uint64_t MegatronDataset::data_bytes() const noexcept { return state_->data.size(); }
std::uint64_t MegatronDataset::bytes_read() const noexcept { return state_->bytes_read; }

bool MegatronDataset::next(std::uint64_t vocabulary_size, std::span<std::int32_t> out, Part& part) {
  State& state = *state_;
  part = {};
  if (!state.inside) {
    if (state.document == state.documents) return false;
    state.open_document();
  }
  while (state.left == 0 && state.sequence < state.document_end) state.open_sequence();
  part.count = static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), state.left));
  const std::size_t bytes = part.count * state.width;
  state.raw.resize(bytes);
  if (bytes > 0) state.data.read(state.at, state.raw.data(), bytes);
  const std::span<std::int32_t> tokens = out.first(part.count);
  std::int64_t strange = 0;
  const auto read = [&](auto type) {
    return widen<decltype(type)>(state.raw.data(), tokens, vocabulary_size, strange);
  };
  const bool good = state.type == 1   ? read(std::uint8_t{})
                    : state.type == 2 ? read(std::int8_t{})
                    : state.type == 3 ? read(std::int16_t{})
                    : state.type == 4 ? read(std::int32_t{})
                    : state.type == 5 ? read(std::int64_t{})
                                      : read(std::uint16_t{});
  if (!good) {
    fail(ErrorKind::data, "{}: document {} has token {}, but the vocabulary has {}; is it the right vocabulary?",
         state.data.path(), state.document, strange, vocabulary_size);
  }
  state.at += bytes;
  state.left -= part.count;
  state.bytes_read += bytes;
  part.ends_document = state.left == 0 && state.sequence == state.document_end;
  if (part.ends_document) {
    state.inside = false;
    ++state.document;
  }
  return true;
}

}  // namespace ananke
