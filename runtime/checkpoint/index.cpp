#include "runtime/checkpoint/index.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>

#include "ananke/checkpoint.pb.h"
#include "runtime/base/error.h"

namespace ananke {
namespace {

std::string sizes_text(const CheckpointTensor& tensor) { return fmt::format("[{}]", fmt::join(tensor.shape(), ", ")); }

bool same_shape(const CheckpointTensor& tensor, const Shape& shape) {
  if (tensor.shape_size() != shape.rank()) return false;
  for (int i = 0; i < shape.rank(); ++i) {
    if (tensor.shape(i) != static_cast<std::uint64_t>(shape[i])) return false;
  }
  return true;
}

std::uint64_t elements(const CheckpointTensor& tensor) {
  std::uint64_t product = 1;
  for (std::uint64_t size : tensor.shape()) product *= size;
  return product;
}

// "it has 'weight', 'exp_avg'": the states of a parameter, or that it has no such parameter at all.
std::string what_there_is(const CheckpointIndex& index, const std::string& parameter) {
  std::string states;
  for (const CheckpointTensor& tensor : index.tensors()) {
    if (tensor.parameter() == parameter) states += fmt::format("{}'{}'", states.empty() ? "" : ", ", tensor.state());
  }
  if (states.empty()) return "it has no parameter of this name: it is of another model";
  return fmt::format("of this parameter it has {}: it is of another optimizer", states);
}

}  // namespace

void IndexBuilder::add(const CheckpointIndex& part) {
  const int file = index_.files_size();
  if (part.files_size() != 1) fail(ErrorKind::internal, "a checkpoint's part has {} files, not 1", part.files_size());
  *index_.add_files() = part.files(0);
  for (const CheckpointTensor& tensor : part.tensors()) {
    auto [place, is_new] = tensors_.try_emplace({tensor.parameter(), tensor.state()}, index_.tensors_size());
    CheckpointTensor& merged = is_new ? *index_.add_tensors() : *index_.mutable_tensors(place->second);
    if (is_new) {
      merged.set_parameter(tensor.parameter());
      merged.set_state(tensor.state());
      *merged.mutable_shape() = tensor.shape();
    } else if (sizes_text(merged) != sizes_text(tensor)) {
      fail(ErrorKind::checkpoint, "'{}' of {} is {} on rank {} and {} on others; this is a bug", tensor.state(),
           tensor.parameter(), sizes_text(tensor), part.files(0).rank(), sizes_text(merged));
    }
    for (const CheckpointFragment& fragment : tensor.fragments()) {
      CheckpointFragment& added = *merged.add_fragments();
      added = fragment;
      added.set_file(static_cast<std::uint32_t>(file));
    }
  }
}

void IndexBuilder::finish() {
  for (CheckpointTensor& tensor : *index_.mutable_tensors()) {
    auto& fragments = *tensor.mutable_fragments();
    std::sort(fragments.begin(), fragments.end(), [](const auto& a, const auto& b) { return a.begin() < b.begin(); });
    std::uint64_t covered = 0;
    for (const CheckpointFragment& fragment : fragments) {
      if (fragment.begin() != covered) {
        fail(ErrorKind::checkpoint, "elements {} to {} of '{}' of {} were written {}; this is a bug",
             std::min(covered, fragment.begin()), std::max(covered, fragment.begin()) - 1, tensor.state(),
             tensor.parameter(), fragment.begin() > covered ? "by no rank" : "by two ranks");
      }
      covered += fragment.count();
    }
    if (covered != elements(tensor)) {
      fail(ErrorKind::checkpoint, "{} elements of '{}' of {} were written, and its shape {} has {}; this is a bug",
           covered, tensor.state(), tensor.parameter(), sizes_text(tensor), elements(tensor));
    }
  }
}

namespace {

void check_tensor(const CheckpointTensor& tensor, int files) {
  constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max() / sizeof(float);
  const auto refuse = [&](const std::string& what) {
    fail(ErrorKind::checkpoint, "its index is impossible: '{}' of {}: {}", tensor.state(), tensor.parameter(), what);
  };
  std::uint64_t elements = 1;
  for (const std::uint64_t size : tensor.shape()) {
    if (size > most || __builtin_mul_overflow(elements, size, &elements) || elements > most) {
      refuse(fmt::format("its shape is {}", sizes_text(tensor)));
    }
  }
  std::uint64_t covered = 0;
  for (const CheckpointFragment& fragment : tensor.fragments()) {
    if (fragment.begin() != covered || fragment.count() > elements - covered) {
      refuse(fmt::format("{} elements from {} stand where those from {} of {} should", fragment.count(),
                         fragment.begin(), covered, elements));
    }
    if (fragment.file() >= static_cast<std::uint32_t>(files)) {
      refuse(fmt::format("elements from {} are in file {} of {}", fragment.begin(), fragment.file(), files));
    }
    covered += fragment.count();
  }
  if (covered != elements) refuse(fmt::format("{} of {} elements are in no file", elements - covered, elements));
}

}  // namespace

void check_index(const CheckpointIndex& index) {
  std::set<std::pair<std::string_view, std::string_view>> seen;
  for (const CheckpointTensor& tensor : index.tensors()) {
    check_tensor(tensor, index.files_size());
    if (!seen.emplace(tensor.parameter(), tensor.state()).second) {
      fail(ErrorKind::checkpoint, "its index is impossible: '{}' of {} stands in it twice", tensor.state(),
           tensor.parameter());
    }
  }
}

namespace {

// The pieces of one target; fragments are sorted, exhaustive and without overlap.
void cut(const CheckpointTensor& tensor, std::size_t index, const StateTarget& target, std::vector<FilePiece>& pieces) {
  const std::int64_t end = target.begin + target.count;
  for (const CheckpointFragment& fragment : tensor.fragments()) {
    const auto from = static_cast<std::int64_t>(fragment.begin());
    const auto count = static_cast<std::int64_t>(fragment.count());
    const std::int64_t first = std::max(from, target.begin);
    const std::int64_t last = std::min(from + count, end);
    if (first >= last) continue;
    pieces.push_back({index, static_cast<int>(fragment.file()), first - from, first - target.begin, last - first,
                      last - first == count, fragment.checksum()});
  }
}

}  // namespace

TensorLocator::TensorLocator(const CheckpointIndex& index) : index_(index) {
  for (const CheckpointTensor& tensor : index.tensors()) tensors_[{tensor.parameter(), tensor.state()}] = &tensor;
}

void TensorLocator::locate(const StateTarget& target, std::size_t number, std::vector<FilePiece>& pieces) const {
  const auto found = tensors_.find({target.parameter, target.state});
  if (found == tensors_.end()) {
    fail(ErrorKind::checkpoint, "it holds no '{}' of {}; {}", target.state, target.parameter,
         what_there_is(index_, target.parameter));
  }
  if (!same_shape(*found->second, target.shape)) {
    fail(ErrorKind::checkpoint, "{} is {} in it and {} in the job: it is of another model", target.parameter,
         sizes_text(*found->second), to_string(target.shape));
  }
  if (target.begin < 0 || target.count < 0 || target.begin + target.count > target.shape.elements()) {
    fail(ErrorKind::internal, "elements [{}, {}) of {} {} were asked for", target.begin, target.begin + target.count,
         target.parameter, to_string(target.shape));
  }
  cut(*found->second, number, target, pieces);
}

std::vector<FilePiece> locate(const CheckpointIndex& index, std::span<const StateTarget> targets) {
  const TensorLocator tensors(index);
  std::vector<FilePiece> pieces;
  for (std::size_t i = 0; i < targets.size(); ++i) tensors.locate(targets[i], i, pieces);
  std::stable_sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.file < b.file; });
  return pieces;
}

}  // namespace ananke
