// Reading a shared library's file without loading it. The dynamic loader trusts the file: a library that was cut short
// dies by SIGBUS inside dlopen, or even loads and dies later. So everything the loader would map is compared with the
// file's size here, and nothing is trusted: any content of any length gives an answer or an Error.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace ananke {

// Checks that `file` is a whole ELF shared library for this machine: magic, class, byte order, machine, kind, every
// PT_LOAD segment, the section table and every section inside the file's size. Throws Error(plugin), one sentence
// naming the file and both sides. Then returns the content of the section called `section`, or nothing if it has none.
std::optional<std::string> read_library_section(const std::filesystem::path& file, const std::string& section);

}  // namespace ananke
