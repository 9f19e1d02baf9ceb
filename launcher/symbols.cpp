#include "launcher/symbols.h"

#include <cxxabi.h>
#include <elf.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>

namespace ananke {
namespace {

constexpr std::uint64_t most_bytes = std::uint64_t{1} << 28;  // of one table; more is no file of ours
constexpr std::size_t longest_name = 200;

// `count` records from a place in a file; nothing where the file has them not.
template <class T>
std::optional<std::vector<T>> read_records(std::ifstream& file, std::uint64_t at, std::uint64_t count) {
  if (count > most_bytes / sizeof(T)) return std::nullopt;
  std::vector<T> records(count);
  file.clear();
  file.seekg(static_cast<std::streamoff>(at));
  file.read(reinterpret_cast<char*>(records.data()), static_cast<std::streamsize>(count * sizeof(T)));
  if (!file) return std::nullopt;
  return records;
}

std::string readable(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  std::string result = text ? text.get() : name;
  if (result.size() > longest_name) result = result.substr(0, longest_name - 3) + "...";
  return result;
}

}  // namespace

Symbols::Symbols() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    // 7f12c0000000-7f12c0200000 r-xp 00001000 08:01 1234    /usr/lib/libx.so
    std::istringstream words(line);
    std::string range, rights, offset, device, inode, file;
    words >> range >> rights >> offset >> device >> inode;
    std::getline(words >> std::ws, file);
    const auto dash = range.find('-');
    if (dash == std::string::npos || rights.find('x') == std::string::npos || !file.starts_with('/')) continue;
    mappings_.push_back({std::strtoull(range.c_str(), nullptr, 16),
                         std::strtoull(range.c_str() + dash + 1, nullptr, 16),
                         std::strtoull(offset.c_str(), nullptr, 16), file});
  }
}

Symbols::File Symbols::read(const std::string& path) {
  File result;
  std::ifstream file(path, std::ios::binary);
  const auto header = read_records<Elf64_Ehdr>(file, 0, 1);
  if (!header || std::memcmp(header->front().e_ident, ELFMAG, SELFMAG) != 0 ||
      header->front().e_ident[EI_CLASS] != ELFCLASS64) {
    return result;
  }
  const Elf64_Ehdr& elf = header->front();
  const auto segments = read_records<Elf64_Phdr>(file, elf.e_phoff, elf.e_phnum);
  const auto sections = read_records<Elf64_Shdr>(file, elf.e_shoff, elf.e_shnum);
  if (!segments) return result;
  for (const Elf64_Phdr& one : *segments) {
    if (one.p_type == PT_LOAD) result.segments.push_back({one.p_offset, one.p_filesz, one.p_vaddr});
  }
  if (!sections) return result;
  // The table of all symbols where the file has kept it, else that of the dynamic ones.
  const Elf64_Shdr* table = nullptr;
  for (const Elf64_Shdr& one : *sections) {
    if (one.sh_type == SHT_SYMTAB || (one.sh_type == SHT_DYNSYM && table == nullptr)) table = &one;
  }
  if (table == nullptr || table->sh_link >= sections->size()) return result;
  const auto symbols = read_records<Elf64_Sym>(file, table->sh_offset, table->sh_size / sizeof(Elf64_Sym));
  const Elf64_Shdr& strings = (*sections)[table->sh_link];
  auto names = read_records<char>(file, strings.sh_offset, strings.sh_size);
  if (!symbols || !names || names->empty()) return result;
  names->back() = '\0';
  for (const Elf64_Sym& symbol : *symbols) {
    const bool function = ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_value != 0;
    if (!function || symbol.st_name >= names->size()) continue;
    result.functions.push_back({symbol.st_value, symbol.st_size, names->data() + symbol.st_name});
  }
  std::ranges::sort(result.functions, {}, &Function::begin);
  return result;
}

std::string Symbols::name(std::uintptr_t address) {
  const auto mapping =
      std::ranges::find_if(mappings_, [&](const Mapping& m) { return m.begin <= address && address < m.end; });
  if (mapping == mappings_.end()) return fmt::format("{:#x}", address);
  const std::string short_name = mapping->file.substr(mapping->file.rfind('/') + 1);
  const auto [known, is_new] = files_.try_emplace(mapping->file);
  if (is_new) known->second = read(mapping->file);
  const File& file = known->second;
  const std::uint64_t offset = address - mapping->begin + mapping->offset;
  for (const File::Segment& segment : file.segments) {
    if (offset < segment.offset || offset >= segment.offset + segment.size) continue;
    const std::uint64_t place = offset - segment.offset + segment.address;
    auto after = std::ranges::upper_bound(file.functions, place, {}, &Function::begin);
    if (after == file.functions.begin()) break;
    const Function& function = *--after;
    if (function.size > 0 && place >= function.begin + function.size) break;
    return fmt::format("{} ({})", readable(function.name.c_str()), short_name);
  }
  return fmt::format("{}+{:#x}", short_name, offset);
}

}  // namespace ananke
