// A plugin's note: who it is and what its config looks like, read from the file before it is loaded, so that a job is
// checked and a wrong plugin refused without running a line of its code.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ananke {

class PluginNote;  // proto/ananke/plugin.proto

// Reads .note.ananke of a shared library. Throws Error(plugin), one sentence naming the file and both sides: not a
// whole ELF shared library of this machine (elf_file.h), no note, a note of another layout, a damaged note.
// The fingerprint is not judged here: `ananke plugins info` also describes what cannot be loaded.
PluginNote read_note(const std::filesystem::path& file);

// This program's own ANANKE_FINGERPRINT.
const char* runtime_fingerprint() noexcept;

// Throws Error(plugin) naming both fingerprints when the plugin was built differently from this program.
void check_fingerprint(const PluginNote& note, const std::filesystem::path& file);

// Names of the proto files that are the plugin's own: those of the note less google/protobuf/... and ananke/....
// protobuf knows a file name, and every message name, once per process.
std::vector<std::string> own_files(const PluginNote& note);

}  // namespace ananke
