#include "plugins/backend_cuda/kernel_name.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace ananke::cuda {
namespace {

constexpr std::size_t longest = 96;

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                    std::free);
  return text ? text.get() : name;
}

void remove_all(std::string& text, std::string_view part) {
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos;) text.erase(at, part.size());
}

// The parameter list, where the text ends in one.
void cut_parameters(std::string& text) {
  if (!text.ends_with(')')) return;
  int depth = 0;
  for (std::size_t i = text.size(); i-- > 0;) {
    depth += text[i] == ')' ? 1 : text[i] == '(' ? -1 : 0;
    if (depth > 0) continue;
    if (i > 0) text.resize(i);
    return;
  }
}

// Return type and namespaces: what comes before the last "::" or blank outside of template arguments.
void cut_front(std::string& text) {
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    depth += text[i] == '<' ? 1 : text[i] == '>' ? -1 : 0;
    if (depth == 0 && (text[i] == ' ' || text[i] == ':')) begin = i + 1;
  }
  if (begin < text.size()) text.erase(0, begin);
}

}  // namespace

std::string short_kernel_name(const std::string& name) {
  std::string text = demangled(name);
  if (text != name) {
    remove_all(text, "(anonymous namespace)::");
    cut_parameters(text);
    cut_front(text);
  }
  if (text.size() > longest) text = text.substr(0, longest - 3) + "...";
  return text;
}

}  // namespace ananke::cuda
