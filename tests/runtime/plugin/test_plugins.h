// Where the tests' plugins are, and broken copies of them.
#pragma once

#include <filesystem>
#include <string>

#include "tests/temporary_folder.h"

namespace ananke {

inline std::filesystem::path test_library(const std::string& name) {
  return std::filesystem::path(ANANKE_BINARY_DIR) / "tests" / "library" / (name + ".so");
}

inline std::filesystem::path broken_library(const std::string& folder, const std::string& name) {
  return std::filesystem::path(ANANKE_BINARY_DIR) / "tests" / "broken_library" / folder / (name + ".so");
}

// Every `from` in the file becomes `to`, of the same length.
inline std::string patched(std::string content, const std::string& from, const std::string& to) {
  EXPECT_EQ(from.size(), to.size());
  std::size_t at = content.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  for (; at != std::string::npos; at = content.find(from, at + 1)) content.replace(at, from.size(), to);
  return content;
}

}  // namespace ananke
