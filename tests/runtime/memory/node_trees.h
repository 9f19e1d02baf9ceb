// Recorded node trees (fixtures/, written by make_fixtures.py) as folders.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/temporary_folder.h"

namespace ananke {

// Unpacks "==> /path <==" sections below `root`. `name`: of a file of this source tree.
inline void unpack(const std::string& name, const std::filesystem::path& root) {
  std::ifstream file(std::filesystem::path(ANANKE_SOURCE_DIR) / name, std::ios::binary);
  if (!file) throw std::runtime_error("there is no " + name);
  std::ofstream out;
  bool begun = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("==> /") && line.ends_with(" <==")) {
      const std::filesystem::path path = root / line.substr(5, line.size() - 9);
      std::filesystem::create_directories(path.parent_path());
      out = std::ofstream(path, std::ios::binary);
      begun = true;
    } else if (begun) {
      out << line << '\n';
    }
  }
}

inline void unpack_tree(const std::string& name, const std::filesystem::path& root) {
  unpack("tests/runtime/memory/fixtures/" + name + ".txt", root);
}

class NodeTree {
 public:
  explicit NodeTree(const std::string& name) { unpack_tree(name, folder_.path()); }
  const std::filesystem::path& root() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

}  // namespace ananke
