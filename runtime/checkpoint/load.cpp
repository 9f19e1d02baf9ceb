#include <algorithm>
#include <optional>
#include <sstream>

#include "ananke/checkpoint.pb.h"
#include "ananke/job.pb.h"
#include "runtime/base/hash.h"
#include "runtime/base/log.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/index.h"
#include "runtime/checkpoint/shard_file.h"
#include "runtime/checkpoint/verdict.h"

namespace ananke {
namespace {

// What rank 0 tells the others: lines of text. No folder: there is nothing (more) to choose.
struct Choice {
  std::string folder;
  std::string index_hash;
  std::vector<std::string> passed_over;  // since the last choice

  std::string encode() const {
    std::string text = folder + "\n" + index_hash + "\n";
    for (std::string line : passed_over) {
      std::replace(line.begin(), line.end(), '\n', ' ');
      text += line + "\n";
    }
    return text;
  }
  static Choice decode(const std::string& text) {
    Choice choice;
    std::istringstream lines(text);
    std::getline(lines, choice.folder);
    std::getline(lines, choice.index_hash);
    for (std::string line; std::getline(lines, line);) choice.passed_over.push_back(line);
    return choice;
  }
};

// The next complete one of `found`, which it is taken from together with the unusable ones before it.
Choice choose(std::vector<FoundCheckpoint>& found) {
  Choice choice;
  while (!found.empty() && choice.folder.empty()) {
    const FoundCheckpoint next = found.front();
    found.erase(found.begin());
    if (next.complete()) {
      choice.folder = next.folder.filename().string();
      choice.index_hash = next.index_hash;
    } else {
      choice.passed_over.push_back(fmt::format("{}: {}", next.folder.string(), next.problem));
    }
  }
  return choice;
}

void read_pieces(const std::filesystem::path& folder, const CheckpointIndex& index,
                 std::span<const StateTarget> targets) {
  std::optional<ShardReader> file;
  std::vector<float> room;  // of targets that do not lie in host memory
  int opened = -1;
  for (const FilePiece& piece : locate(index, targets)) {
    if (piece.file != opened) {
      file.reset();
      file.emplace(folder / index.files(piece.file).name());
      opened = piece.file;
    }
    const StateTarget& target = targets[piece.target];
    Hasher64 checksum;
    const std::int64_t most = target.data ? piece.count : std::min(piece.count, StateTarget::at_once);
    if (!target.data) room.resize(static_cast<std::size_t>(most));
    for (std::int64_t begin = 0; begin < piece.count; begin += most) {
      const std::int64_t count = std::min(most, piece.count - begin), first = piece.offset_in_target + begin;
      float* into = target.data ? target.data + first : room.data();
      file->read(target.parameter, target.state, piece.offset + begin, count, into);
      checksum.update(into, static_cast<std::size_t>(count) * sizeof(float));
      if (!target.data) target.move(first, {into, static_cast<std::size_t>(count)});
    }
    if (piece.whole && checksum.value() != piece.checksum) {
      fail(ErrorKind::checkpoint, "'{}' of {} in {} does not have the checksum of the index", target.state,
           target.parameter, index.files(piece.file).name());
    }
  }
}

void check_hashes(const std::filesystem::path& folder, const CheckpointIndex& index, int rank, int ranks) {
  for (int i = rank; i < index.files_size(); i += ranks) check_file_hash(folder, index.files(i));
}

}  // namespace

// Everything short of reading tensors. Files are dealt to ranks in turn, so that each is hashed once.
Verdict Checkpoints::verify(LoadedState& state, const std::string& index_hash, std::span<const StateTarget> targets,
                            const ResumeCheck& check, CheckpointIndex& index) {
  auto job = std::make_shared<Job>();
  Verdict verdict = attempt(Verdict::damaged, [&] {
    index = read_index(state.folder, index_hash);
    if (!job->ParseFromString(index.job())) fail(ErrorKind::checkpoint, "the job in its index is garbled");
  });
  if (verdict.kind != Verdict::ok) return verdict;
  state.progress = {index.step(), index.total_valid_tokens(), index.optimizer_steps(), index.batches_position()};
  state.job = std::move(job);
  verdict = attempt(Verdict::refused, [&] {
    if (check) check(state);
  });
  if (verdict.kind != Verdict::ok) return verdict;
  verdict = attempt(Verdict::refused, [&] { locate(index, targets); });
  if (verdict.kind != Verdict::ok) {
    verdict.text = fmt::format("checkpoint {} does not fit this job: {}", state.folder.string(), verdict.text);
    return verdict;
  }
  return attempt(Verdict::damaged, [&] { check_hashes(state.folder, index, ranks_.rank(), ranks_.size()); });
}

std::optional<LoadedState> Checkpoints::load_newest(std::span<const StateTarget> targets, const ResumeCheck& check) {
  ++calls_;
  const bool leads = ranks_.rank() == 0;
  std::vector<FoundCheckpoint> found;
  const Verdict scan = judge("scan", attempt(Verdict::refused, [&] {
                               if (leads) found = find_checkpoints(run_dir_);
                             }));
  if (scan.kind != Verdict::ok) throw Error(scan.error, scan.text);

  std::vector<std::string> passed_over;
  for (int round = 0;; ++round) {
    const auto blobs = exchange(fmt::format("choice/{}", round), leads ? choose(found).encode() : "");
    const Choice choice = Choice::decode(blobs.front());
    for (const std::string& line : choice.passed_over) {
      if (leads) log_warning("checkpoint passed over: {}", line);
      passed_over.push_back(line);
    }
    if (choice.folder.empty()) {
      if (passed_over.empty()) return std::nullopt;
      fail(ErrorKind::checkpoint,
           "none of the {} checkpoints in {} can be used: {}; restore one, or start anew in another "
           "run_dir",
           passed_over.size(), folder_.string(), fmt::join(passed_over, "; "));
    }
    LoadedState state;
    state.folder = folder_ / choice.folder;
    CheckpointIndex index;
    Verdict verdict = judge(fmt::format("verified/{}", round), verify(state, choice.index_hash, targets, check, index));
    if (verdict.kind == Verdict::ok) {
      verdict = judge(fmt::format("read/{}", round),
                      attempt(Verdict::damaged, [&] { read_pieces(state.folder, index, targets); }));
    }
    if (verdict.kind == Verdict::refused) throw Error(verdict.error, verdict.text);
    if (verdict.kind == Verdict::ok) {
      state.passed_over = std::move(passed_over);
      return state;
    }
    passed_over.push_back(fmt::format("{}: {}", state.folder.string(), verdict.text));
    if (leads) log_warning("checkpoint passed over: {}", passed_over.back());
  }
}

}  // namespace ananke
