#include "runtime/plugin/note.h"

#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>

#include "ananke/plugin.pb.h"
#include "runtime/base/random.h"
#include "tests/refusal.h"
#include "tests/runtime/plugin/test_plugins.h"

namespace ananke {
namespace {

class Note : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& content) { return folder_.write("broken.so", content); }
  const std::string whole_ = read_text(test_library("test_echo"));
  TemporaryFolder folder_;
};

TEST_F(Note, RefusesWhatIsNotThere) {
  EXPECT_ERROR(read_note(folder_.path() / "nothing.so"), ErrorKind::plugin, "nothing.so", "does not exist");
  EXPECT_ERROR(read_note(folder_.path()), ErrorKind::plugin, folder_.path().string(), "is not a file");
}

TEST_F(Note, RefusesAnEmptyFileAndATextFile) {
  EXPECT_ERROR(read_note(write("")), ErrorKind::plugin, "broken.so", "empty (0 bytes)");
  EXPECT_ERROR(read_note(write("model { hidden_size: 8 }\n")), ErrorKind::plugin, "broken.so", "ELF magic");
  EXPECT_ERROR(read_note(write("\x7f"
                               "E")),
               ErrorKind::plugin, "broken.so", "ELF magic");
  EXPECT_ERROR(read_note(write("\x7f"
                               "ELF")),
               ErrorKind::plugin, "cut short", "64 bytes", "the file has 4");
}

TEST_F(Note, RefusesAFileCutAtAnyLength) {
  for (int percent : {10, 50, 90, 99}) {
    const std::string cut = whole_.substr(0, whole_.size() * static_cast<std::size_t>(percent) / 100);
    EXPECT_ERROR(read_note(write(cut)), ErrorKind::plugin, "broken.so", "cut short",
                 fmt::format("the file has {}", cut.size()));
  }
  EXPECT_ERROR(read_note(write(whole_.substr(0, whole_.size() - 1))), ErrorKind::plugin, "cut short");
}

TEST_F(Note, RefusesAnotherArchitectureClassOrKind) {
  Elf64_Ehdr header;
  std::memcpy(&header, whole_.data(), sizeof(header));
  const auto with = [&](const Elf64_Ehdr& changed) {
    std::string content = whole_;
    std::memcpy(content.data(), &changed, sizeof(changed));
    return write(content);
  };
  Elf64_Ehdr other = header;
  other.e_machine = header.e_machine == EM_X86_64 ? EM_AARCH64 : EM_X86_64;
  EXPECT_ERROR(read_note(with(other)), ErrorKind::plugin, "broken.so", "x86_64", "aarch64");
  other = header;
  other.e_ident[EI_CLASS] = ELFCLASS32;
  EXPECT_ERROR(read_note(with(other)), ErrorKind::plugin, "broken.so", "64-bit");
  other = header;
  other.e_ident[EI_DATA] = ELFDATA2MSB;
  EXPECT_ERROR(read_note(with(other)), ErrorKind::plugin, "broken.so", "byte order");
  other = header;
  other.e_type = ET_EXEC;
  EXPECT_ERROR(read_note(with(other)), ErrorKind::plugin, "broken.so", "an executable");
  other = header;
  other.e_shoff = 0;
  EXPECT_ERROR(read_note(with(other)), ErrorKind::plugin, "broken.so", "no section table");
  other = header;
  other.e_shoff = ~std::uint64_t{0} - 8;
  EXPECT_ERROR(read_note(with(other)), ErrorKind::plugin, "broken.so", "section table", "18446744073709551607");
}

TEST_F(Note, RefusesALibraryWithoutANote) {
  const std::filesystem::path runtime = std::filesystem::path(ANANKE_BINARY_DIR) / "lib" / "libananke.so";
  EXPECT_ERROR(read_note(runtime), ErrorKind::plugin, "libananke.so", "no section .note.ananke");
}

// Whatever bytes a file holds, the answer is a note or an Error: never a crash (sanitizers watch).
TEST_F(Note, SurvivesAnyDamage) {
  const RandomKey random(7, "damage");
  std::uint64_t draw = 0;
  // Only the tables and the note matter to the reader: damage its first 1,200 bytes and the section table at the end.
  const std::size_t tail = whole_.size() - 3000;
  for (int round = 0; round < 150; ++round) {
    std::string content = whole_;
    for (int hit = 0; hit < 4; ++hit) {
      const std::size_t at = hit % 2 == 0 ? random.below(draw++, 1200) : tail + random.below(draw++, 3000);
      content[at] = static_cast<char>(random.below(draw++, 256));
    }
    try {
      read_note(write(content));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::plugin) << error.what();
    }
  }
}

TEST_F(Note, TellsWhoThePluginIsWithItsFieldsAndComments) {
  const PluginNote note = read_note(test_library("test_echo"));
  EXPECT_EQ(note.name(), "test_echo");
  EXPECT_EQ(note.role(), "observer");
  EXPECT_EQ(note.version(), "1.0");
  EXPECT_EQ(note.description(), "Says a word several times");
  EXPECT_EQ(note.config_message(), "ananke.plugin.Echo");
  EXPECT_EQ(note.fingerprint(), runtime_fingerprint());
  EXPECT_EQ(own_files(note), std::vector<std::string>{"tests/runtime/plugin/echo/echo.proto"});
  EXPECT_GT(note.files().file(note.files().file_size() - 1).source_code_info().location_size(), 0);
  EXPECT_EQ(read_note(test_library("test_bare")).config_message(), "");
}

TEST_F(Note, NamesBothFingerprints) {
  const std::filesystem::path file = write(patched(whole_, "cxx11-abi 1", "cxx11-abi 0"));
  EXPECT_ERROR(check_fingerprint(read_note(file), file), ErrorKind::plugin, "broken.so", "cxx11-abi 0", "cxx11-abi 1");
  EXPECT_NO_THROW(check_fingerprint(read_note(test_library("test_echo")), "x"));
}

}  // namespace
}  // namespace ananke
