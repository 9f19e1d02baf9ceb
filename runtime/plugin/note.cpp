#include "runtime/plugin/note.h"

#include <elf.h>
#include <fmt/ranges.h>
#include <google/protobuf/stubs/logging.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "ananke/plugin.pb.h"
#include "runtime/base/error.h"
#include "runtime/plugin/elf_file.h"
#include "runtime/plugin/fingerprint.h"

namespace ananke {
namespace {

constexpr std::string_view note_owner("ananke\0", 7);
constexpr std::uint32_t note_layout = 1;

std::uint64_t padded(std::uint64_t bytes) { return (bytes + 3) & ~std::uint64_t{3}; }

// The descriptor bytes of the note of our owner; the section may hold several notes (ELF, "Note Section").
std::string_view find_descriptor(std::string_view section, const std::string& file) {
  while (section.size() >= sizeof(Elf64_Nhdr)) {
    Elf64_Nhdr header;
    std::memcpy(&header, section.data(), sizeof(header));
    section.remove_prefix(sizeof(header));
    const std::uint64_t name_bytes = padded(header.n_namesz);
    if (name_bytes > section.size() || header.n_descsz > section.size() - name_bytes) {
      fail(ErrorKind::plugin, "{} is damaged: its plugin note claims {} bytes, its section has {} left", file,
           name_bytes + header.n_descsz, section.size());
    }
    if (section.substr(0, header.n_namesz) == note_owner) {
      if (header.n_type != note_layout) {
        fail(ErrorKind::plugin, "{} has a plugin note of layout {}, this program reads layout {}; rebuild the plugin",
             file, header.n_type, note_layout);
      }
      return section.substr(name_bytes, header.n_descsz);
    }
    section.remove_prefix(std::min<std::uint64_t>(section.size(), name_bytes + padded(header.n_descsz)));
  }
  fail(ErrorKind::plugin, "{} is damaged: its section .note.ananke holds no note of ananke", file);
}

// "ananke 0.1.0", "gcc 12.2.0", ...
std::vector<std::string> parts_of(std::string_view fingerprint) {
  std::vector<std::string> parts;
  for (std::size_t end = 0; end != std::string_view::npos;) {
    end = fingerprint.find(", ");
    parts.emplace_back(fingerprint.substr(0, end));
    if (end != std::string_view::npos) fingerprint.remove_prefix(end + 2);
  }
  return parts;
}

}  // namespace

PluginNote read_note(const std::filesystem::path& file) {
  const std::optional<std::string> section = read_library_section(file, ".note.ananke");
  if (!section) {
    fail(ErrorKind::plugin,
         "{} is a shared library but no plugin: it has no section .note.ananke; build it with "
         "ananke_plugin()",
         file.string());
  }
  const std::string_view descriptor = find_descriptor(*section, file.string());
  const google::protobuf::LogSilencer quiet;  // a damaged note is our message's subject, not the console's
  PluginNote note;
  if (!note.ParseFromArray(descriptor.data(), static_cast<int>(descriptor.size()))) {
    fail(ErrorKind::plugin, "{} is damaged: the {} bytes of its plugin note are not a PluginNote", file.string(),
         descriptor.size());
  }
  if (note.name().empty() || note.role().empty() || note.fingerprint().empty()) {
    fail(ErrorKind::plugin, "{} has an incomplete plugin note: name '{}', role '{}', fingerprint '{}'", file.string(),
         note.name(), note.role(), note.fingerprint());
  }
  return note;
}

const char* runtime_fingerprint() noexcept { return ANANKE_FINGERPRINT; }

void check_fingerprint(const PluginNote& note, const std::filesystem::path& file) {
  if (note.fingerprint() == runtime_fingerprint()) return;
  std::vector<std::string> theirs = parts_of(note.fingerprint()), ours = parts_of(runtime_fingerprint());
  if (theirs.size() == ours.size()) {  // what differs is what a person needs
    std::vector<std::string> of_plugin, of_program;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      if (theirs[i] == ours[i]) continue;
      of_plugin.push_back(theirs[i]);
      of_program.push_back(ours[i]);
    }
    theirs = std::move(of_plugin);
    ours = std::move(of_program);
  }
  fail(ErrorKind::plugin,
       "{} was built with [{}], this program with [{}]; rebuild the plugin with this ananke's headers, "
       "compiler and flags",
       file.string(), fmt::join(theirs, ", "), fmt::join(ours, ", "));
}

std::vector<std::string> own_files(const PluginNote& note) {
  std::vector<std::string> names;
  for (const auto& file : note.files().file()) {
    if (!file.name().starts_with("google/protobuf/") && !file.name().starts_with("ananke/"))
      names.push_back(file.name());
  }
  return names;
}

}  // namespace ananke
