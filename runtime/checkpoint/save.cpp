#include <array>

#include "ananke/checkpoint.pb.h"
#include "ananke/job.pb.h"
#include "runtime/base/hash.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/durable.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/index.h"
#include "runtime/checkpoint/shard_file.h"
#include "runtime/checkpoint/verdict.h"

namespace ananke {

Checkpoints::Checkpoints(std::filesystem::path run_dir, Rendezvous& ranks, std::string name, CheckpointOwner owner)
    : run_dir_(std::move(run_dir)),
      folder_(checkpoints_folder(run_dir_)),
      ranks_(ranks),
      name_(std::move(name)),
      owner_(std::move(owner)) {}

std::vector<std::string> Checkpoints::exchange(std::string_view what, std::string blob, std::span<const int> members) {
  return ranks_.exchange_after_work(fmt::format("{}/{}/{}", name_, calls_, what), members, std::move(blob));
}

Verdict Checkpoints::judge(std::string_view what, const Verdict& own) {
  return Verdict::of_all(exchange(what, own.encode()));
}

// Rank 0 makes the folder and tells the others its name.
std::filesystem::path Checkpoints::begin_folder(std::uint64_t step) {
  Verdict own;
  std::string name;
  if (ranks_.rank() == 0) {
    own = attempt(Verdict::refused, [&] {
      confirm();
      make_folder(folder_);
      remove_leftovers(folder_, owner_.mark);
      const auto partial = partial_folder(folder_, step, owner_.mark);
      make_folder(partial);
      name = partial.filename().string();
    });
    if (own.kind == Verdict::ok) own.text = name;
  }
  const Verdict first = Verdict::decode(exchange("begin", own.encode()).front());
  if (first.kind == Verdict::ok) return folder_ / first.text;
  fail(ErrorKind::checkpoint, "the checkpoint of step {} was not written: {}", step, first.text);
}

// Writes this rank's file and describes it.
CheckpointIndex Checkpoints::write_own(const std::filesystem::path& folder, std::span<const StateFragment> fragments) {
  CheckpointIndex part;
  const auto file = folder / shard_file_name(ranks_.rank());
  auto temporary = file;
  temporary += ".tmp";
  const auto checksums = write_shard(temporary, fragments);
  CheckpointFile& described = *part.add_files();
  described.set_name(file.filename().string());
  described.set_hash(hash_file(temporary));
  described.set_bytes(std::filesystem::file_size(temporary));
  described.set_rank(static_cast<std::uint32_t>(ranks_.rank()));
  rename_durably(temporary, file);
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    const StateFragment& fragment = fragments[i];
    CheckpointTensor& tensor = *part.add_tensors();
    tensor.set_parameter(fragment.parameter);
    tensor.set_state(fragment.state);
    for (int d = 0; d < fragment.shape.rank(); ++d) tensor.add_shape(static_cast<std::uint64_t>(fragment.shape[d]));
    CheckpointFragment& piece = *tensor.add_fragments();
    piece.set_file(0);
    piece.set_begin(static_cast<std::uint64_t>(fragment.begin));
    piece.set_count(static_cast<std::uint64_t>(fragment.count));
    piece.set_checksum(checksums[i]);
  }
  return part;
}

// All ranks' descriptions, on rank 0. One exchange per rank: they are long, and only rank 0 needs them.
std::vector<CheckpointIndex> Checkpoints::gather_parts(CheckpointIndex own) {
  std::vector<CheckpointIndex> parts;
  const bool leads = ranks_.rank() == 0;
  const std::string blob = leads ? std::string() : own.SerializeAsString();
  if (leads) parts.push_back(std::move(own));
  for (int other = 1; other < ranks_.size(); ++other) {
    if (!leads && ranks_.rank() != other) continue;
    const std::array<int, 2> pair{0, other};
    const auto blobs = exchange(fmt::format("part/{}", other), blob, pair);
    if (!leads) break;
    ANANKE_CHECK(parts.emplace_back().ParseFromString(blobs[1]), "the description of rank {}'s file is garbled", other);
  }
  return parts;
}

// Writes the index and the marker, and gives the folder its name.
void Checkpoints::complete(const std::filesystem::path& partial, const TrainingProgress& progress, const Job& job,
                           std::span<const CheckpointIndex> parts) {
  CheckpointIndex index;
  index.set_format(index.format());  // explicit in the file
  index.set_step(progress.step);
  index.set_total_valid_tokens(progress.total_valid_tokens);
  index.set_optimizer_steps(progress.optimizer_steps);
  index.set_batches_position(progress.batches_position);
  index.set_job(job.SerializeAsString());
  IndexBuilder builder(index);
  for (const CheckpointIndex& part : parts) {
    if (part.files_size() > 0) builder.add(part);
  }
  builder.finish();
  write_index(partial, index);
  confirm();  // whoever takes the run folder over from here on renames `partial`, so that the next line fails
  replace_folder(partial, folder_ / step_folder_name(progress.step));
}

void Checkpoints::save(const TrainingProgress& progress, const Job& job, std::span<const StateFragment> fragments,
                       int keep_last) {
  ++calls_;
  const auto partial = begin_folder(progress.step);
  const bool leads = ranks_.rank() == 0;
  CheckpointIndex own;
  Verdict verdict = judge("written", attempt(Verdict::refused, [&] {
                            if (!fragments.empty()) own = write_own(partial, fragments);
                          }));
  if (verdict.kind == Verdict::ok) {
    const auto parts = gather_parts(std::move(own));
    verdict = judge("complete", attempt(Verdict::refused, [&] {
                      if (leads) complete(partial, progress, job, parts);
                    }));
  }
  if (verdict.kind != Verdict::ok) {
    if (leads) remove_folder(partial);
    fail(ErrorKind::checkpoint, "the checkpoint of step {} was not written; earlier ones are untouched. {}",
         progress.step, verdict.text);
  }
  if (leads && attempt(Verdict::refused, [&] { confirm(); }).kind == Verdict::ok) {
    remove_older(run_dir_, progress.step, keep_last);
  }
}

}  // namespace ananke
