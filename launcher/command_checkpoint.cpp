// `ananke checkpoint list|info|verify`: what a run left behind, and whether it is still as it was written.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>

#include "ananke/checkpoint.pb.h"
#include "ananke/job.pb.h"
#include "launcher/command.h"
#include "launcher/command_options.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/comm/mesh.h"

namespace ananke {
namespace {

using Path = std::filesystem::path;

std::string age_of(const Path& folder) {
  std::error_code error;
  auto time = std::filesystem::last_write_time(folder / "COMPLETE", error);
  if (error) time = std::filesystem::last_write_time(folder, error);
  if (error) return "?";
  const std::chrono::duration<double> age = std::filesystem::file_time_type::clock::now() - time;
  return format_duration(std::max(age.count(), 0.0));
}

// "2 x 4", with an expert axis "2 x 2 x 2".
std::string mesh_text(const Job& job) {
  const MeshShape mesh = mesh_of(job.mesh());
  if (mesh.expert == 1) return fmt::format("{} x {}", mesh.replicate, mesh.shard);
  return fmt::format("{} x {} x {}", mesh.replicate, mesh.expert_shard(), mesh.expert);
}

// A run's folder, its checkpoints folder, or a single checkpoint. Throws Error(checkpoint) when there is none.
std::vector<FoundCheckpoint> find_all(const std::string& given) {
  const Path path = Path(given).has_filename() ? Path(given) : Path(given).parent_path();
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) {
    fail(ErrorKind::checkpoint, "{} is no folder; name a run's folder or a checkpoint's", given);
  }
  if (is_checkpoint_folder(path)) return {inspect_checkpoint(path)};
  std::vector<FoundCheckpoint> found = find_checkpoints(path);
  if (found.empty() && path.filename() == "checkpoints") {
    found = find_checkpoints(path.parent_path().empty() ? "." : path.parent_path());
  }
  if (found.empty()) fail(ErrorKind::checkpoint, "there is no checkpoint in {}", given);
  return found;
}

void print_line(const FoundCheckpoint& found) {
  std::string mesh = "?", size = "?";
  if (found.complete()) {
    const CheckpointIndex index = read_index(found.folder, found.index_hash);
    mesh = mesh_text(read_checkpoint_job(index));
    size = format_bytes(found.bytes);
  }
  std::printf("%8llu  %10s  %13s  %8s  %s%s\n", static_cast<unsigned long long>(found.step), size.c_str(),
              age_of(found.folder).c_str(), mesh.c_str(),
              found.complete() ? "complete" : "not usable: ", found.problem.c_str());
}

// By state: how many tensors and elements.
void print_states(const CheckpointIndex& index) {
  std::map<std::string, std::pair<std::size_t, double>> states;
  for (const CheckpointTensor& tensor : index.tensors()) {
    auto& [tensors, elements] = states[tensor.state()];
    double product = 1;
    for (const std::uint64_t size : tensor.shape()) product *= static_cast<double>(size);
    ++tensors;
    elements += product;
  }
  for (const auto& [state, sum] : states) {
    std::printf("  %-12s %6zu tensors  %8s elements\n", state.c_str(), sum.first, format_count(sum.second).c_str());
  }
}

void print_job_summary(const Job& job) {
  const Model& model = job.model();
  const Training& training = job.training();
  std::printf("job       %s, run folder %s, version %s\n", job.name().c_str(), job.run_dir().c_str(),
              job.resolved().version().c_str());
  std::printf("model     %u layers, hidden %u, vocabulary %u, %u heads (%u key/value) of %u", model.num_hidden_layers(),
              model.hidden_size(), model.vocab_size(), model.num_attention_heads(), model.num_key_value_heads(),
              model.head_dim());
  if (model.num_experts() > 0) {
    std::printf(", %u experts of width %u, top %u", model.num_experts(), model.moe_intermediate_size(),
                model.num_experts_per_tok());
  }
  std::printf("%s\n", model.tie_word_embeddings() ? ", tied head" : "");
  std::printf("training  %u steps of %u rows x %u tokens, seed %llu\n", training.steps(), training.rows_per_step(),
              training.sequence_length(), static_cast<unsigned long long>(training.seed()));
  std::printf("mesh      %s\n", to_string(mesh_of(job.mesh())).c_str());
}

void print_tensors(const CheckpointIndex& index) {
  std::printf("\n%-64s %-12s %-18s %s\n", "parameter", "state", "shape", "pieces");
  for (const CheckpointTensor& tensor : index.tensors()) {
    std::printf("%-64s %-12s %-18s %d\n", tensor.parameter().c_str(), tensor.state().c_str(),
                fmt::format("[{}]", fmt::join(tensor.shape(), ", ")).c_str(), tensor.fragments_size());
  }
}

}  // namespace

int command_checkpoint_list(const Arguments& arguments) {
  std::string folder;
  CommandOptions options("checkpoint list", "RUN_DIR",
                         "Lists a run's checkpoints, newest first: size, age, the mesh that wrote it, and whether it\n"
                         "is complete. Sizes are compared with the index; `checkpoint verify` compares all bytes.");
  options.word("RUN_DIR", folder);
  if (!options.read(arguments)) return 0;
  const std::vector<FoundCheckpoint> found = find_all(folder);
  std::printf("%8s  %10s  %13s  %8s  %s\n", "step", "size", "age", "mesh", "state");
  for (const FoundCheckpoint& one : found) print_line(one);
  return 0;
}

int command_checkpoint_info(const Arguments& arguments) {
  std::string folder;
  CommandOptions options("checkpoint info", "FOLDER",
                         "Describes a checkpoint, or the newest complete one of a run folder: the job that wrote it\n"
                         "and every tensor's shape.");
  options.word("FOLDER", folder);
  if (!options.read(arguments)) return 0;
  const FoundCheckpoint* chosen = nullptr;
  const std::vector<FoundCheckpoint> all = find_all(folder);
  for (const FoundCheckpoint& found : all) {
    if (found.complete() && chosen == nullptr) chosen = &found;
  }
  if (chosen == nullptr) {
    fail(ErrorKind::checkpoint, "{} is not usable: {}", all[0].folder.string(), all[0].problem);
  }
  const CheckpointIndex index = read_index(chosen->folder, chosen->index_hash);
  std::printf("%s: step %llu, %d files, %s, written %s ago\n", chosen->folder.c_str(),
              static_cast<unsigned long long>(index.step()), index.files_size(), format_bytes(chosen->bytes).c_str(),
              age_of(chosen->folder).c_str());
  std::printf("progress  %llu steps done, %llu updates applied, %s tokens\n",
              static_cast<unsigned long long>(index.step()), static_cast<unsigned long long>(index.optimizer_steps()),
              format_count(static_cast<double>(index.total_valid_tokens())).c_str());
  print_job_summary(read_checkpoint_job(index));
  print_states(index);
  print_tensors(index);
  return 0;
}

int command_checkpoint_verify(const Arguments& arguments) {
  std::string folder;
  CommandOptions options(
      "checkpoint verify", "FOLDER",
      "Reads all of a checkpoint, or of every checkpoint of a run folder, and compares every\n"
      "file's hash and every tensor's checksum. Exit code 6 when anything is not as it was written.");
  options.word("FOLDER", folder);
  if (!options.read(arguments)) return 0;
  bool good = true;
  for (const FoundCheckpoint& found : find_all(folder)) {
    const CheckpointReport report = verify_checkpoint(found.folder);
    if (report.problems.empty()) {
      std::printf("%s: good: %llu files, %s, %llu tensor pieces compared\n", found.folder.c_str(),
                  static_cast<unsigned long long>(report.files), format_bytes(report.bytes).c_str(),
                  static_cast<unsigned long long>(report.fragments));
      continue;
    }
    good = false;
    std::printf("%s: DAMAGED\n", found.folder.c_str());
    for (const std::string& problem : report.problems) std::printf("  %s\n", problem.c_str());
  }
  return good ? 0 : static_cast<int>(ErrorKind::checkpoint);
}

}  // namespace ananke
