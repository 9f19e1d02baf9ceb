#include "runtime/plugin/elf_file.h"

#include <elf.h>

#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string_view>
#include <system_error>
#include <vector>

#include "runtime/base/error.h"

namespace ananke {
namespace {

#if defined(__x86_64__)
constexpr std::uint16_t this_machine = EM_X86_64;
#elif defined(__aarch64__)
constexpr std::uint16_t this_machine = EM_AARCH64;
#else
#error "name this machine's ELF code here"
#endif
constexpr unsigned char this_order = std::endian::native == std::endian::little ? ELFDATA2LSB : ELFDATA2MSB;
constexpr std::uint64_t largest_table = 64u << 20;  // of any table or note that is read into memory

std::string machine_name(std::uint16_t machine) {
  switch (machine) {
    case EM_X86_64: return "x86_64";
    case EM_AARCH64: return "aarch64";
    case EM_386: return "x86 (32 bits)";
    case EM_ARM: return "arm (32 bits)";
    case EM_PPC64: return "ppc64";
    case EM_RISCV: return "riscv";
    default: return fmt::format("machine code {}", machine);
  }
}

std::string kind_name(std::uint16_t type) {
  switch (type) {
    case ET_REL: return "an object file";
    case ET_EXEC: return "an executable";
    case ET_CORE: return "a core dump";
    default: return fmt::format("ELF type {}", type);
  }
}

// Reads pieces of one file, each inside its size.
class Library {
 public:
  explicit Library(const std::filesystem::path& path) : path_(path.string()) {
    std::error_code error;
    const auto status = std::filesystem::status(path, error);
    if (!std::filesystem::exists(status)) refuse("does not exist");
    if (!std::filesystem::is_regular_file(status)) refuse("is not a file");
    size_ = std::filesystem::file_size(path, error);
    stream_.open(path, std::ios::binary);
    if (error || !stream_) refuse("cannot be read: {}", error ? error.message() : std::strerror(errno));
  }

  std::uint64_t size() const { return size_; }

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) const {
    fail(ErrorKind::plugin, "{} {}", path_, fmt::format(text, std::forward<Args>(args)...));
  }

  // The check that no sum of two numbers from the file can overflow.
  void require_inside(std::uint64_t offset, std::uint64_t bytes, std::string_view what) const {
    if (offset > size_ || bytes > size_ - offset) {
      refuse("is cut short or damaged: {} needs {} bytes from byte {}, the file has {}; build or copy it again", what,
             bytes, offset, size_);
    }
  }

  std::string read(std::uint64_t offset, std::uint64_t bytes, std::string_view what) {
    require_inside(offset, bytes, what);
    if (bytes > largest_table)
      refuse("is damaged: {} claims {} bytes, at most {} make sense", what, bytes, largest_table);
    std::string content(bytes, '\0');
    stream_.clear();
    stream_.seekg(static_cast<std::streamoff>(offset));
    if (!stream_.read(content.data(), static_cast<std::streamsize>(bytes))) refuse("cannot be read at byte {}", offset);
    return content;
  }

  template <class Row>
  std::vector<Row> read_table(std::uint64_t offset, std::uint64_t count, std::string_view what) {
    const std::string bytes = read(offset, count * sizeof(Row), what);  // count is 16 bits in every ELF table
    std::vector<Row> rows(count);
    if (count > 0) std::memcpy(rows.data(), bytes.data(), bytes.size());
    return rows;
  }

 private:
  std::string path_;
  std::ifstream stream_;
  std::uint64_t size_ = 0;
};

Elf64_Ehdr read_header(Library& library) {
  if (library.size() == 0) library.refuse("is empty (0 bytes); build or copy it again");
  const std::string start =
      library.read(0, std::min<std::uint64_t>(library.size(), EI_NIDENT), "the ELF identification");
  if (!start.starts_with(ELFMAG)) library.refuse("is not an ELF shared library: it does not begin with the ELF magic");
  library.require_inside(0, sizeof(Elf64_Ehdr), "the ELF header");
  if (start[EI_CLASS] != ELFCLASS64) {
    library.refuse("is not 64-bit (ELF class {}), this program is 64-bit (class {})", int{start[EI_CLASS]}, ELFCLASS64);
  }
  if (start[EI_DATA] != this_order) {
    library.refuse("has ELF byte order {}, this machine has {}", int{start[EI_DATA]}, int{this_order});
  }
  const auto header = library.read_table<Elf64_Ehdr>(0, 1, "the ELF header")[0];
  if (header.e_machine != this_machine) {
    library.refuse("is built for {}, this machine is {}; build it here", machine_name(header.e_machine),
                   machine_name(this_machine));
  }
  if (header.e_type != ET_DYN) library.refuse("is {}, a plugin is a shared library", kind_name(header.e_type));
  return header;
}

void check_segments(Library& library, const Elf64_Ehdr& header) {
  if (header.e_phentsize != sizeof(Elf64_Phdr)) {
    library.refuse("is damaged: its segment table has entries of {} bytes, ELF has {}", header.e_phentsize,
                   sizeof(Elf64_Phdr));
  }
  int loads = 0;
  for (const Elf64_Phdr& segment :
       library.read_table<Elf64_Phdr>(header.e_phoff, header.e_phnum, "the segment table")) {
    if (segment.p_type != PT_LOAD && segment.p_type != PT_DYNAMIC) continue;
    library.require_inside(segment.p_offset, segment.p_filesz, "a segment to be loaded");
    loads += segment.p_type == PT_LOAD;
  }
  if (loads == 0) library.refuse("is damaged: it has no segment to load");
}

std::vector<Elf64_Shdr> read_sections(Library& library, const Elf64_Ehdr& header) {
  if (header.e_shoff == 0 || header.e_shnum == 0) {
    library.refuse("has no section table, so its plugin note cannot be found; it may have been stripped too far");
  }
  if (header.e_shentsize != sizeof(Elf64_Shdr)) {
    library.refuse("is damaged: its section table has entries of {} bytes, ELF has {}", header.e_shentsize,
                   sizeof(Elf64_Shdr));
  }
  auto sections = library.read_table<Elf64_Shdr>(header.e_shoff, header.e_shnum, "the section table");
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type == SHT_NULL || section.sh_type == SHT_NOBITS) continue;
    library.require_inside(section.sh_offset, section.sh_size, "a section");
  }
  if (header.e_shstrndx >= sections.size()) {
    library.refuse("is damaged: section names are said to be in section {} of {}", header.e_shstrndx, sections.size());
  }
  return sections;
}

}  // namespace

std::optional<std::string> read_library_section(const std::filesystem::path& file, const std::string& section) {
  Library library(file);
  const Elf64_Ehdr header = read_header(library);
  check_segments(library, header);
  const std::vector<Elf64_Shdr> sections = read_sections(library, header);
  const Elf64_Shdr& strings = sections[header.e_shstrndx];
  if (strings.sh_type == SHT_NOBITS) library.refuse("is damaged: its section names are not in the file");
  const std::string names = library.read(strings.sh_offset, strings.sh_size, "the section names");
  const std::string wanted = section + '\0';
  for (const Elf64_Shdr& candidate : sections) {
    if (candidate.sh_type != SHT_NOTE || candidate.sh_name >= names.size()) continue;
    if (names.compare(candidate.sh_name, wanted.size(), wanted) != 0) continue;
    return library.read(candidate.sh_offset, candidate.sh_size, "section " + section);
  }
  return std::nullopt;
}

}  // namespace ananke
