#include "runtime/checkpoint/folder.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <optional>
#include <random>

#include "ananke/checkpoint.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/log.h"
#include "runtime/base/read_file.h"
#include "runtime/checkpoint/durable.h"
#include "runtime/checkpoint/index.h"

namespace ananke {
namespace {

constexpr const char* index_name = "index.json";
constexpr const char* marker_name = "COMPLETE";
constexpr std::string_view step_prefix = "step-";
constexpr std::size_t step_digits = 8;
constexpr std::string_view partial_mark = ".partial.", deleting_mark = ".deleting";

// "step-00000100" → 100; nothing for any other name, so that foreign files are never taken for ours.
std::optional<std::uint64_t> step_of(std::string_view name) {
  if (!name.starts_with(step_prefix)) return std::nullopt;
  name.remove_prefix(step_prefix.size());
  std::uint64_t step = 0;
  auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || rest != name.data() + name.size() || name.size() < step_digits) return std::nullopt;
  return step;
}

std::string read_part(const std::filesystem::path& file) {
  const std::string name = file.filename().string();
  std::string why;
  if (std::optional<std::string> bytes = read_file(file, &why)) return *std::move(bytes);
  if (!std::filesystem::exists(file)) fail(ErrorKind::checkpoint, "{} is missing", name);
  fail(ErrorKind::checkpoint, "{} cannot be read: {}", name, why);
}

// The marker's one line is "index.json <32 hex digits>".
std::string read_marker(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder / marker_name)) {
    fail(ErrorKind::checkpoint, "the marker {} is missing: it was not written to its end", marker_name);
  }
  const std::string text = read_part(folder / marker_name);
  const std::string start = std::string(index_name) + " ";
  if (text.size() != start.size() + 33 || !text.starts_with(start) || text.back() != '\n') {
    fail(ErrorKind::checkpoint, "the marker {} has {} bytes that do not name an index's hash", marker_name,
         text.size());
  }
  return text.substr(start.size(), 32);
}

// Present and of the right size; returns the sum of sizes.
std::uint64_t check_files(const std::filesystem::path& folder, const CheckpointIndex& index) {
  std::uint64_t total = 0;
  for (const CheckpointFile& file : index.files()) {
    std::error_code error;
    const auto bytes = std::filesystem::file_size(folder / file.name(), error);
    if (error) fail(ErrorKind::checkpoint, "{}: {}", file.name(), error.message());
    if (bytes != file.bytes()) {
      fail(ErrorKind::checkpoint, "{} has {} bytes where the index says {}", file.name(), bytes, file.bytes());
    }
    total += bytes;
  }
  return total;
}

// Folders of a run's checkpoints folder with their names; empty where there is no such folder.
std::vector<std::filesystem::path> folders_in(const std::filesystem::path& checkpoints) {
  std::vector<std::filesystem::path> found;
  std::error_code error;
  if (!std::filesystem::exists(checkpoints, error) && !error) return found;
  std::filesystem::directory_iterator entry(checkpoints, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored)) found.push_back(entry->path());
  }
  if (error) fail(ErrorKind::checkpoint, "cannot read folder {}: {}", checkpoints.string(), error.message());
  return found;
}

}  // namespace

std::filesystem::path checkpoints_folder(const std::filesystem::path& run_dir) { return run_dir / "checkpoints"; }
std::string step_folder_name(std::uint64_t step) { return fmt::format("{}{:0{}}", step_prefix, step, step_digits); }
std::string shard_file_name(int rank) { return fmt::format("rank-{:04}.h5", rank); }

std::vector<FoundCheckpoint> find_checkpoints(const std::filesystem::path& run_dir) {
  std::vector<FoundCheckpoint> found;
  for (const auto& folder : folders_in(checkpoints_folder(run_dir))) {
    if (step_of(folder.filename().string())) found.push_back(inspect_checkpoint(folder));
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
  return found;
}

std::vector<std::string> unfinished_checkpoints(const std::filesystem::path& run_dir) {
  std::vector<std::string> names;
  for (const auto& folder : folders_in(checkpoints_folder(run_dir))) {
    std::string name = folder.filename().string();
    if (is_leftover(name) && !name.ends_with(deleting_mark)) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

FoundCheckpoint inspect_checkpoint(const std::filesystem::path& folder) {
  FoundCheckpoint found;
  found.folder = folder;
  const std::optional<std::uint64_t> named = step_of(folder.filename().string());
  found.step = named.value_or(0);
  try {
    found.index_hash = read_marker(folder);
    const CheckpointIndex index = read_index(folder, found.index_hash);
    if (named && index.step() != *named) fail(ErrorKind::checkpoint, "its index is of step {}", index.step());
    found.step = index.step();
    found.bytes = check_files(folder, index);
  } catch (const std::exception& error) {
    found.problem = error.what();
  }
  return found;
}

bool is_leftover(const std::string& name) {
  const auto dot = name.find('.');
  if (dot == std::string::npos || !step_of(std::string_view(name).substr(0, dot))) return false;
  return name.compare(dot, partial_mark.size(), partial_mark) == 0 || name.ends_with(deleting_mark);
}

CheckpointIndex read_index(const std::filesystem::path& folder, const std::string& hash) {
  const std::string text = read_part(folder / index_name);
  if (const std::string actual = hash_hex(text); actual != hash) {
    fail(ErrorKind::checkpoint, "{} has the hash {} where the marker says {}", index_name, actual, hash);
  }
  CheckpointIndex index;
  const auto status = google::protobuf::util::JsonStringToMessage(text, &index);
  if (!status.ok()) fail(ErrorKind::checkpoint, "{} is not a checkpoint's index: {}", index_name, status.ToString());
  if (index.format() != CheckpointIndex().format()) {
    fail(ErrorKind::checkpoint, "its format is {}; this version reads {}", index.format(), CheckpointIndex().format());
  }
  for (const CheckpointFile& file : index.files()) {
    // Names are ours; a path would lead out of the folder.
    if (file.name().empty() || file.name().find('/') != std::string::npos) {
      fail(ErrorKind::checkpoint, "{} names a file '{}' outside the folder", index_name, file.name());
    }
  }
  check_index(index);
  return index;
}

void check_file_hash(const std::filesystem::path& folder, const CheckpointFile& file) {
  if (const std::string hash = hash_file(folder / file.name()); hash != file.hash()) {
    fail(ErrorKind::checkpoint, "{} is damaged: its hash is {} where the index says {}", file.name(), hash,
         file.hash());
  }
}

std::string write_index(const std::filesystem::path& folder, const CheckpointIndex& index) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(index, &text, options);
  if (!status.ok()) fail(ErrorKind::internal, "cannot print a checkpoint's index as JSON: {}", status.ToString());
  text += '\n';
  write_durably(folder / index_name, text);
  const std::string hash = hash_hex(text);
  write_durably(folder / marker_name, fmt::format("{} {}\n", index_name, hash));
  return hash;
}

std::filesystem::path partial_folder(const std::filesystem::path& checkpoints, std::uint64_t step,
                                     std::string_view mark) {
  std::random_device random;
  return checkpoints / fmt::format("{}{}{}{:08x}", step_folder_name(step), partial_mark, mark, random());
}

void retire_unfinished(const std::filesystem::path& checkpoints) {
  for (const auto& folder : folders_in(checkpoints)) {
    const std::string name = folder.filename().string();
    if (!is_leftover(name) || name.ends_with(deleting_mark)) continue;
    auto doomed = folder;
    doomed += deleting_mark;
    // One that got its final name at this moment is a complete checkpoint.
    if (std::rename(folder.c_str(), doomed.c_str()) != 0 && errno != ENOENT) {
      fail(ErrorKind::checkpoint, "cannot rename {}, which another job has left unfinished: {}", folder.string(),
           reason(errno, folder));
    }
  }
  remove_leftovers(checkpoints, {});
}

void remove_leftovers(const std::filesystem::path& checkpoints, std::string_view mark) noexcept {
  try {
    const std::string own = std::string(partial_mark) + std::string(mark);
    for (const auto& folder : folders_in(checkpoints)) {
      const std::string name = folder.filename().string();
      if (is_leftover(name) && (name.find(own) != std::string::npos || name.ends_with(deleting_mark))) {
        remove_folder(folder);
      }
    }
  } catch (const std::exception& error) {
    log_warning("leftovers of earlier checkpoints stay: {}", error.what());
  }
}

void remove_older(const std::filesystem::path& run_dir, std::uint64_t step, int keep_last) noexcept {
  if (keep_last <= 0) return;
  try {
    int kept = 0;
    for (const FoundCheckpoint& found : find_checkpoints(run_dir)) {
      if (found.step > step) continue;
      if (kept >= keep_last) {
        remove_folder(found.folder);
      } else if (found.complete()) {
        ++kept;
      }
    }
  } catch (const std::exception& error) {
    log_warning("older checkpoints stay: {}", error.what());
  }
}

}  // namespace ananke
