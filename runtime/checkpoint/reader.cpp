#include "runtime/checkpoint/reader.h"

#include "ananke/checkpoint.pb.h"
#include "ananke/job.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/log.h"

namespace ananke {
namespace {

constexpr std::size_t most_open_files = 512;  // of the 1024 that a process usually may have

// Looks into a run folder, or into the checkpoints folder of one.
std::vector<FoundCheckpoint> checkpoints_below(const std::filesystem::path& folder) {
  auto found = find_checkpoints(folder);
  const bool inside = folder.filename() == checkpoints_folder("").filename();
  if (found.empty() && inside) found = find_checkpoints(folder.parent_path().empty() ? "." : folder.parent_path());
  return found;
}

}  // namespace

bool is_checkpoint_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  return std::filesystem::exists(folder / "COMPLETE", ignored) ||
         std::filesystem::exists(folder / "index.json", ignored) ||
         std::filesystem::exists(folder / shard_file_name(0), ignored);
}

Job read_checkpoint_job(const CheckpointIndex& index) {
  Job job;
  if (!job.ParseFromString(index.job())) fail(ErrorKind::checkpoint, "the job in its index is garbled");
  return job;
}

CheckpointReader::CheckpointReader(const std::filesystem::path& given) {
  const std::filesystem::path path = given.has_filename() ? given : given.parent_path();  // "run/" is "run"
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) {
    fail(ErrorKind::checkpoint, "{} is no folder; name a checkpoint's folder or a run's", path.string());
  }
  if (is_checkpoint_folder(path)) {
    try {
      open(path);
      return;
    } catch (const std::exception& error) {
      fail(ErrorKind::checkpoint, "the checkpoint {} cannot be used: {}", path.string(), error.what());
    }
  }
  std::string passed_over;
  for (const FoundCheckpoint& found : checkpoints_below(path)) {
    try {
      open(found.folder);
      return;
    } catch (const std::exception& error) {
      log_warning("checkpoint passed over: {}: {}", found.folder.string(), error.what());
      passed_over += fmt::format("\n  {}: {}", found.folder.string(), error.what());
    }
  }
  if (passed_over.empty()) fail(ErrorKind::checkpoint, "there is no checkpoint in {}", path.string());
  fail(ErrorKind::checkpoint, "none of the checkpoints in {} can be used:{}", path.string(), passed_over);
}

CheckpointReader::~CheckpointReader() = default;

void CheckpointReader::open(const std::filesystem::path& folder) {
  const FoundCheckpoint found = inspect_checkpoint(folder);
  if (!found.complete()) fail(ErrorKind::checkpoint, "{}", found.problem);
  index_ = std::make_unique<CheckpointIndex>(read_index(folder, found.index_hash));
  job_ = std::make_unique<Job>(read_checkpoint_job(*index_));
  for (const CheckpointFile& file : index_->files()) check_file_hash(folder, file);
  tensors_ = std::make_unique<TensorLocator>(*index_);
  folder_ = folder;
}

void CheckpointReader::read(const std::string& parameter, const std::string& state, const Shape& shape,
                            std::int64_t begin, std::span<float> out) {
  const StateTarget target{parameter, state, shape, begin, static_cast<std::int64_t>(out.size()), out.data()};
  std::vector<FilePiece> pieces;
  tensors_->locate(target, 0, pieces);
  for (const FilePiece& piece : pieces) {
    auto file = files_.find(piece.file);
    if (file == files_.end()) {
      if (files_.size() >= most_open_files) files_.clear();
      file = files_.emplace(piece.file, ShardReader(folder_ / index_->files(piece.file).name())).first;
    }
    file->second.read(parameter, state, piece.offset, piece.count, out.data() + piece.offset_in_target);
  }
}

namespace {

// One fragment against what the index says of it.
void check_fragment(ShardReader& file, const CheckpointTensor& tensor, const CheckpointFragment& fragment) {
  const ShardReader::Description found = file.describe(tensor.parameter(), tensor.state());
  std::vector<std::int64_t> shape;
  for (const std::uint64_t size : tensor.shape()) shape.push_back(static_cast<std::int64_t>(size));
  if (tensor.shape().empty()) shape.push_back(1);
  if (static_cast<std::uint64_t>(found.begin) != fragment.begin() ||
      static_cast<std::uint64_t>(found.elements) != fragment.count() || found.shape != shape ||
      found.checksum != fragment.checksum()) {
    fail(ErrorKind::checkpoint,
         "its attributes say {} elements from {} of [{}] with checksum {:016x}, the index says {} from {} of [{}] with "
         "{:016x}",
         found.elements, found.begin, fmt::join(found.shape, ", "), found.checksum, fragment.count(), fragment.begin(),
         fmt::join(shape, ", "), fragment.checksum());
  }
  std::vector<float> values(fragment.count());
  file.read(tensor.parameter(), tensor.state(), 0, found.elements, values.data());
  const std::uint64_t checksum = hash64({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  if (checksum != fragment.checksum()) {
    fail(ErrorKind::checkpoint, "its data have the checksum {:016x}, the index says {:016x}", checksum,
         fragment.checksum());
  }
}

void check_fragments(const std::filesystem::path& folder, const CheckpointIndex& index, int number,
                     CheckpointReport& report) {
  const std::string& name = index.files(number).name();
  ShardReader file(folder / name);
  for (const CheckpointTensor& tensor : index.tensors()) {
    for (const CheckpointFragment& fragment : tensor.fragments()) {
      if (fragment.file() != static_cast<std::uint32_t>(number)) continue;
      try {
        check_fragment(file, tensor, fragment);
        ++report.fragments;
      } catch (const std::exception& error) {
        report.problems.push_back(
            fmt::format("{}: '{}' of {}: {}", name, tensor.state(), tensor.parameter(), error.what()));
      }
    }
  }
}

}  // namespace

CheckpointReport verify_checkpoint(const std::filesystem::path& folder) {
  CheckpointReport report;
  CheckpointIndex index;
  const FoundCheckpoint found = inspect_checkpoint(folder);
  try {
    if (found.index_hash.empty()) fail(ErrorKind::checkpoint, "{}", found.problem);  // nothing vouches for the index
    index = read_index(folder, found.index_hash);
    read_checkpoint_job(index);
  } catch (const std::exception& error) {
    report.problems.push_back(error.what());
    return report;
  }
  for (int i = 0; i < index.files_size(); ++i) {
    try {
      check_file_hash(folder, index.files(i));
      ++report.files;
      report.bytes += index.files(i).bytes();
      check_fragments(folder, index, i, report);
    } catch (const std::exception& error) {
      report.problems.push_back(error.what());
    }
  }
  if (!found.complete() && report.problems.empty()) report.problems.push_back(found.problem);
  return report;
}

}  // namespace ananke
