#include "runtime/plugin/search_path.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <system_error>

namespace ananke {

Folders folders_in_variable(const char* variable) {
  Folders folders;
  const char* value = std::getenv(variable);
  std::string_view rest = value ? value : "";
  while (!rest.empty()) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    if (!folder.empty()) folders.emplace_back(folder);
    rest.remove_prefix(std::min(rest.size(), folder.size() + 1));
  }
  return folders;
}

std::filesystem::path runtime_folder() {
  Dl_info library{};
  if (dladdr(reinterpret_cast<void*>(&runtime_folder), &library) == 0 || library.dli_fname == nullptr) return ".";
  std::error_code error;
  const std::filesystem::path file = std::filesystem::canonical(library.dli_fname, error);
  return error ? std::filesystem::path(library.dli_fname).parent_path() : file.parent_path();
}

std::string list_of(const Folders& folders) {
  std::string text;
  for (const std::filesystem::path& folder : folders) text += (text.empty() ? "" : ", ") + folder.string();
  return text.empty() ? "(no folder)" : text;
}

}  // namespace ananke
