// Changes to files and folders that survive a crash of the machine: each is synced before it returns. All throw
// Error(checkpoint) naming the path, the action, the system's reason and what to do.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace ananke {

void make_folder(const std::filesystem::path& folder);  // with its parents; no error when it is there
void sync_path(const std::filesystem::path& path);      // fsync of a file or a folder
void write_durably(const std::filesystem::path& path, std::string_view bytes);  // temporary name, fsync, rename
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);
// `from` takes the place of the folder `to`, which is removed where it exists; at no moment is there neither, wherever
// the file system can swap two names.
void replace_folder(const std::filesystem::path& from, const std::filesystem::path& to);
// Renames to a .deleting name first, so that a folder half removed is never taken for a whole one. Warns where it
// fails.
void remove_folder(const std::filesystem::path& folder) noexcept;

// The system's words for what went wrong at `path`, and what to do where that is known. Where it is room that lacks:
// which file system, what is free there, and the bytes `needed` where they are known (0: not).
std::string reason(int error, const std::filesystem::path& path, std::uint64_t needed = 0);

}  // namespace ananke
